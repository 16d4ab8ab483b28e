"""Every family's kernels under NVIDIA's compute-sanitizer and Triton's own sanitizers, and what they find held against
findings that were judged.

    problems      what is computed: small contractions and permutations that need each part of the kernels
    jobs          the schedules of each family that compute them
    workload      a process that runs some jobs, under a tool or alone
    log           what a tool wrote, as findings
    layout        what lies where in a kernel's shared memory
    verdicts      which findings were judged, and why they are no error
    run           the tools side by side, each in several processes
    instrumented  Triton's sanitizers, one after the other
    ring          a plain kernel, whose results stand for the reference where floats are elements of a ring
"""
