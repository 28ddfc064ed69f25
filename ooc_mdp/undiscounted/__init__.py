"""Total rewards: solves without a discount."""
