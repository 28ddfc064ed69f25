// Rows of a policy on a device, for kernels that write them (policy/improve.cu) and that read them (policy/rows.cu).
//
// A partition's rows lie in planes, one for each successor, so that threads of neighbouring states read neighbouring
// numbers; rows that are shorter than the partition's longest are filled up with probability 0:
//
//     entries                 + pitch                 + 2 pitch
//     |                       |                       |
//     0 1 2 ... states-1 ~ ~  0 1 2 ... states-1 ~ ~  0 1 2 ...      k-th successor (and probability) of each state
//
// What a state has once lies at its number. Compiled with REAL, REWARD, VARIES (whether rows have discounts of their
// own, 0 where a state has no action).

struct RowsDescriptor {            // of a partition
    long long entries;
    unsigned pitch, width;
};

struct PolicyRows {
    const RowsDescriptor* descriptors;   // [partitions]
    unsigned* successors;          // states of the model
    REAL* probabilities;
    REWARD* rewards;               // [states], signed; a terminal state's own
    double* discounts;             // [states] if VARIES
    double* second_best;           // [states] Q2, the second-best action value, or -inf
};
