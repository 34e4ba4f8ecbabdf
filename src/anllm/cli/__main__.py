"""`python -m anllm.cli`: the same as `anllm`, for where its script is not on the PATH."""

from anllm.cli.main import main

if __name__ == "__main__":
    main(prog_name="anllm")
