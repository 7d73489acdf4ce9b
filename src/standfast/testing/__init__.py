"""What tests of programs that communicate can use: so far the emulated RDMA fabric.

emulator.py: a fabric, its faults and counters; topology.py: which cables there are; emulate.py: the
command `standfast emulate`.
"""
