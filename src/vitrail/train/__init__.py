"""Training: `State` is all that changes, one loop for every objective, chores with a cadence."""
