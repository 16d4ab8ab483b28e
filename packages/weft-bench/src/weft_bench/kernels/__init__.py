"""The kernels of a plan read: resources, occupancy, code at every level; written for programs in C."""
