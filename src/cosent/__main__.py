"""`python -m cosent JOB` and `accelerate launch -m cosent JOB`, the same as `cosent JOB`."""

from cosent.cli import main

main()
