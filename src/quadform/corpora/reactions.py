"""Reactions of six kinds of the textbook, put together from groups: input for rxnfp without a database."""

from __future__ import annotations

import itertools

#: Groups that a bond may follow, and groups that may follow a bond (SMILES).
LEFT = ("C", "CC", "CCC", "CC(C)", "CCCC", "c1ccccc1", "Cc1ccccc1", "COCC", "C=CC", "C1CCCCC1")
RIGHT = ("C", "CC", "CCC", "C(C)C", "CCCC", "Cc1ccccc1", "CCOC", "CC=C", "C1CCCCC1", "CC(C)C")
RINGS = ("c1ccccc1", "c1ccc(C)cc1", "c1ccc(OC)cc1", "c1ccc(F)cc1", "c1ccncc1")
#: Ester, amide, ether, alcohol (Grignard), biaryl (Suzuki), nitrile.
KINDS = (
    ("{0}C(=O)O.O{1}>>{0}C(=O)O{1}", LEFT, RIGHT),
    ("{0}C(=O)Cl.N{1}>>{0}C(=O)N{1}", LEFT, RIGHT),
    ("{0}Br.O{1}>>{0}O{1}", LEFT, RIGHT),
    ("{0}C=O.Br[Mg]{1}>>{0}C(O){1}", LEFT, RIGHT),
    ("{0}Br.OB(O){1}>>{0}-{1}", ("c1ccccc1", "Cc1ccccc1", "COc1ccccc1"), RINGS),
    ("{0}Br.[C-]#N{1}>>{0}C#N", LEFT, ("",)),
)


def reactions() -> list[str]:
    """All of them, in a fixed order."""
    return [form.format(a, b) for form, left, right in KINDS for a, b in itertools.product(left, right)]
