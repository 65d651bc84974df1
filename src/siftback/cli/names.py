"""Names that the help lists: those of the laboratory's tables, whose modules import torch.

``tests/cli/test_help.py`` holds each list equal to its table.
"""

# fmt: off
SCORES = (
    "el2n", "grand", "margin", "entropy", "loss", "forgetting", "aum", "irreducible",
    "token-irreducible", "sb-uses",
)
ANALYSES = (
    "table1", "budget", "fig1", "fig2", "choices", "strip", "fig3", "losses", "fig4", "fig5",
    "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "fig13", "fig14", "fig15", "fig16",
    "fig17", "fig18", "diet-a", "diet-b", "diet-c", "diet-d", "diet-e", "diet-f", "diet-table",
    "ideal", "agreement", "pays", "budgets", "noise", "rates",
)
