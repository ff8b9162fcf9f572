"""Analysis of benchmark runs: medians and verdicts, answers to the plans' questions, machine limits, divergence."""
