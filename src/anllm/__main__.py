"""`python -m anllm`: the command line, where its script is not on the PATH."""

from anllm.cli import main

if __name__ == "__main__":
    main(prog_name="anllm")
