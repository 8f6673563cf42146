"""All commands that only look, one after the other in one process."""

from mmrl.app.cli import app

if __name__ == "__main__":
    for words in ("--help", "ls rewards", "ls datasets", "ls configs", "ls algorithms", "show grpo", "reward --help"):
        try:
            app(words.split(), standalone_mode=False)
        except SystemExit as left:
            assert not left.code, words
