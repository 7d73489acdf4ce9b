"""`standfast bench`: how fast the collectives are here, beside other libraries and the machine.

command.py reads options; inside.py measures as a rank of a running job, outside.py starts jobs and
takes turns between libraries. plan, data, table and compare are pure.
"""
