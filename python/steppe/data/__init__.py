"""Turns text into the indexed files that training reads.

python -m steppe.data prepare INPUT… --tokenizer T --output PREFIX
python -m steppe.data prepare run.toml
"""
