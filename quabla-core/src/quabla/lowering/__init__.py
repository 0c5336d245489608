"""From a Program to fused loop nests, products and a buffer plan: what backends that generate code share.

In the order of the work:

    passes.py, products.py      rules that rewrite the Program, node by node
    fuse.py                     nodes become items and views of them (items.py, views.py), with a depth each
    placement.py                items move to another kernel, or into several, where that saves memory traffic
    build.py                    items become kernels, products and calls (loops.py)
    buffers.py                  temporaries share one workspace
"""
