"""Programs of our own for the processor, where XLA's are slow: LLVM's language, called from within XLA's programs."""
