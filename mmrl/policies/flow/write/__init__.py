"""Latents drawn step by step, and the plan of sizes they are drawn at."""
