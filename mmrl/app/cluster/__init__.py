"""Who runs where, who starts and watches it, and the script for Slurm."""
