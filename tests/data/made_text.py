"""Text for tests: deterministic sentences."""

WORDS = "areca palm betel nut grove shade river stone light morning evening quiet market village road hill".split()  # noqa: SIM905


def sentence_text(seed: int, lines: int) -> str:
    """Deterministic sentences from a linear congruential generator, so that no two paragraphs are alike."""
    state, out = seed + 1, []
    for _ in range(lines):
        words = []
        for _ in range(9):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            words.append(WORDS[(state >> 33) % len(WORDS)])
        out.append(" ".join(words) + f" {state % 1000}.")
    return "\n".join(out) + "\n"
