"""`python -m batchedapi_operator.plugin`, for where the script is not on the PATH."""

from batchedapi_operator.plugin.main import main

main(prog_name="kubectl batchedapi")
