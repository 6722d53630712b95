"""Records of onnxruntime's kernels, a file per family of operators.

A node of a session goes in; out come the scratch that its kernel allocates, the weights that it
prepacks, the buffers that it shares and the types that it supports. Begin reading at ``kernel``,
which defines a record; ``registry`` joins the families and looks records up.
"""
