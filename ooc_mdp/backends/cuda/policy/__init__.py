"""A policy's rows on a device, and evaluations of the policy on them."""
