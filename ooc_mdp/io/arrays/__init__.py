"""Models as arrays: .npz archives and the matrices of MDPtoolbox."""
