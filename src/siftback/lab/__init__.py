"""The laboratory: train real models on real data, with honest baselines beside every claim.

Everything here uses only what ``import siftback`` makes public, so the laboratory is also the
library's first customer. It needs the extra ``lab``.
"""
