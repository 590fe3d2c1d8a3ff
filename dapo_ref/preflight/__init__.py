"""Checks a machine, or many, before a run (`python -m dapo_ref.preflight`).

checks.py    how a check is run and shown
machine.py   versions, data, folder, disk, collectives
policy.py    engine, packing, sampling, kernels, memory
"""
