"""The CPU backend of Quabla: Programs become native code through LLVM."""
