"""Bad input: each target feeds one reader of ours with bytes that an adversary chose.

`tests/unit/project/test_fuzz_targets.py` runs every target some hundred times in each test run, `python -m tests.fuzz`
for as long as one likes, guided by coverage. Nothing is imported here: `__main__` imports what is to be measured.
"""
