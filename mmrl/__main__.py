"""`python -m mmrl`, and `accelerate launch -m mmrl`, are the command `mmrl`."""

from mmrl.app.cli import main

main()
