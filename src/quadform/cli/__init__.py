"""The command line: `quadform VERB`. Results on stdout, progress on stderr, errors as one line of text.

Exit codes: 0 done; 2 bad input; 3 finished but a check failed; 4 an optional package is missing; 130 interrupted;
1 an error nobody expected. `quadform --help` and `quadform VERB --help` load neither torch nor the figure libraries.
"""

from .main import main

__all__ = ["main"]
