#!/bin/sh
# Fetches the peers into .venv-peers/ of the repository: about 10 GB, most of it older PyTorch.
#
# INFOBATCH may name another clone of InfoBatch's repository, such as one on this disk.
set -eu
cd "$(dirname "$0")/../.."
peers=.venv-peers
python3 -m venv $peers/composer
# The two smaller ones run in whatever PyTorch there is: that of Composer.
$peers/composer/bin/pip install --quiet mosaicml==0.32.1 adaptive-sparse-training==1.0.1 datacull==1.0.2
if [ ! -d $peers/InfoBatch ]; then
    git clone --quiet "${INFOBATCH:-https://github.com/NUS-HPC-AI-Lab/InfoBatch}" $peers/InfoBatch
fi
git -C $peers/InfoBatch checkout --quiet 8bbb012c256c9eb4de3bb209f8a5e73899de8d02
# Its sampler begins again at each batch with the BatchSampler of PyTorch 2.7 and newer.
python3 -m venv $peers/infobatch
$peers/infobatch/bin/pip install --quiet torch==2.5.1 'numpy<2.3'
$peers/composer/bin/python -c "import composer; print('Composer', composer.__version__)"
$peers/composer/bin/python -c "import adaptive_sparse_training, datacull; print('AST, DataCull')"
PYTHONPATH=$peers/InfoBatch $peers/infobatch/bin/python -c "import infobatch; print('InfoBatch')"
