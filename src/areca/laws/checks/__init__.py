"""Whether a fit can be believed: runs held out, choices that move it, bends in residuals, doubts beside its numbers."""
