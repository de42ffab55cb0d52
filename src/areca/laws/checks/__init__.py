"""Whether a fit can be believed: runs held out, choices that move it, bends in its residuals, doubts beside its numbers."""
