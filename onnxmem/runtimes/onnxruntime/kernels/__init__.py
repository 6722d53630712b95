"""What is known of onnxruntime's kernels: one record per kernel, a file per family.

In goes one use of an operator in a session; out come the scratch that its kernel takes, the weights
that it packs, the buffers that it shares and the types that it runs in. Begin reading with
``kernel``, which says what a record holds; ``registry`` joins the families and finds a record.
"""
