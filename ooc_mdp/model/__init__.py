"""What a Markov decision process is: partitions of its table, their source, its solution."""
