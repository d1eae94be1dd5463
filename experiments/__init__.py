"""Floor 4: suites, runner, statistics, tables, plots and TensorBoard."""
