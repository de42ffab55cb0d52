"""`areca train`: one run from a configuration file."""


def run(argv: list[str]) -> int:
    """Parses and runs `areca train`."""
    from areca.cli.options import call
    from areca.cli.settings import split

    argv, given = split(argv)
    return call(train, argv, "areca train", given=given)


def train(
    config: str,
    /,
    *,
    out: str,
    resume: bool = False,
    auto_resume: bool = False,
    from_step: int | None = None,
    init_from: str | None = None,
    noise_scale: bool = False,
    islands: int | None = None,
    islands_on: str | None = None,
    trace_steps: str = "",
    profile_steps: str = "",
    stages: int | None = None,
    microbatches: int | None = None,
    schedule: str | None = None,
    track: tuple[str, ...] = (),
    copy_to: str = "",
    json: bool = False,
    given: dict[str, str] | None = None,
) -> int:
    """Train a model, or go on with a run that was stopped.

    CONFIG is a TOML or JSON file; `areca plan --config-out` writes one. A run that was killed or stopped goes on with
    --resume and ends with the same bits as one that never stopped.

    Any setting of the file can be given here too, written as in TOML: --model.d_model 256 --tokens 1e8. It counts over
    the file's; a run goes on only with the settings that it was begun with.

    Example: areca train run.toml --out runs/first --optimizer.learning_rate 0.003

    Args:
        config: the run's configuration, .toml or .json.
        out: the run directory to write.
        resume: go on with the run in --out; refused if there is none.
        auto_resume: go on if --out holds a run, else start one, for schedulers that repeat one command.
        from_step: with --resume: go on from the checkpoint of this step and drop later ones.
        init_from: start from the parameters of this run or imported model, with a new optimizer; CONFIG may then leave
            [model] out. Give it again with --resume.
        noise_scale: measure the gradient noise scale, in tokens, from the parts of each batch (up to 8): noise_scale
            in metrics.jsonl and result.json. The gradient is then summed over the parts, so the run agrees with the
            same run without it to rounding; give it again with --resume.
        islands: train over so many islands, each a mesh of [parallel] with all parameters; on a CPU it shows as many
            devices. The batch is cut into as many shards if [islands] doesn't say, and the numbers then depend on the
            shards alone, so the run may go on with --resume on another number of islands.
        islands_on: devices of this process (the default), processes of this machine, or ray, actors on the cluster
            that RAY_ADDRESS names. The numbers are the same on all of them.
        trace_steps: record what each island does in these steps, such as 10:12 or 10:12,50:51, in trace.json of
            --out, for `areca trace` and Perfetto.
        profile_steps: profile these steps with jax.profiler, in profile/ of --out, for xprof, TensorBoard or Perfetto;
            of islands in other processes only what this process does.
        stages: train over the stages of a pipeline, each a mesh of [parallel] that holds its own layers' parameters and
            optimizer only. No number depends on it, so a run may go on with --resume on another number of stages.
        microbatches: equal parts of a batch that go through the stages one after another; the numbers depend on it.
        schedule: 1f1b, a microbatch goes back as soon as it can, or gpipe, all go forward first: the same numbers.
        track: send the numbers to tensorboard, wandb, trackio (several may be given) as well, in place of [track] of
            the configuration; `areca track` sends those of an older run. What fails there does not touch the run.
        copy_to: a URL, such as s3://bucket/runs/first, to which each checkpoint is copied in the background with all
            that the run needs to go on; with --resume, a run that --out has lost is fetched from there. A link that is
            lost does not stop the run.
        json: print the result for machines.
    """
    from areca.cli.progress import run_progress, say
    from areca.cli.settings import overlaid
    from areca.config import replace
    from areca.errors import ConfigError
    from areca.footprint.card import summary_of
    from areca.pathways.fleet import kind_of
    from areca.train.islands.tracing import parse_steps
    from areca.train.loop import train as train_run
    from areca.train.models import config_table
    from areca.train.saves import describe

    if from_step is not None and not resume:
        raise ConfigError(
            f"--from-step {from_step} goes back in a run that is there, and drops its later checkpoints; give --resume "
            f"with it{', in place of --auto-resume' if auto_resume else ''}."
        )
    if resume and auto_resume:
        raise ConfigError("--resume and --auto-resume are both given; one refuses to start a run, the other may.")
    windows = parse_steps(trace_steps) if trace_steps else ()
    profiled = parse_steps(profile_steps, "--profile-steps") if profile_steps else ()
    settings = overlaid(config_table(config, out, init_from), given or {}, config)
    if noise_scale and not settings.noise_parts:
        from areca.train.noise import parts_for

        settings = replace(settings, noise_parts=parts_for(settings))
    if islands is not None:
        settings = replace(settings, islands=replace(settings.islands, count=islands))
    asked = {"stages": stages, "microbatches": microbatches, "schedule": schedule}
    asked = {name: value for name, value in asked.items() if value is not None}
    settings = replace(settings, pipeline=replace(settings.pipeline, **asked))
    if track:
        settings = replace(settings, track=replace(settings.track, to=track))
    if islands_on is not None:
        settings = replace(settings, islands=replace(settings.islands, on=kind_of(islands_on)))
    how = "auto" if auto_resume else "must" if resume else "never"
    with run_progress() as listener:
        result = train_run(
            settings,
            out,
            resume=how,
            from_step=from_step,
            listener=listener,
            say=say,
            trace_steps=windows,
            profile_steps=profiled,
            copy_to=copy_to,
        )
    if json:
        from areca.cli.options import print_json

        print_json(result)
    else:
        print(
            f"{out}: held-out loss {result['loss']:.4f} nats a token after {result['n_tokens']:,} tokens "
            f"({result['n_params']:,} parameters without embeddings, {result['flops_exact']:.3g} exact FLOPs, "
            f"{result['seconds']:.1f} s)"
        )
        if "energy_kwh" in result:
            print(summary_of(result))
        if "noise_scale" in result:
            scale = result["noise_scale"]
            told = "unknown, no signal rose above the noise" if scale is None else f"{scale:,.0f} tokens"
            print(
                f"gradient noise scale at the end: {told} (a step has {settings.batch.ramp[-1][1]} x "
                f"{settings.data.context} = {settings.batch.ramp[-1][1] * settings.data.context:,})"
            )
        if "saves" in result:
            print(describe(result["saves"]))
        if result.get("rewinds"):
            print(
                f"on the way it went back from {result['rewinds']} spikes and skipped {result['skipped_tokens']:,} "
                "tokens (events.jsonl says where); a lower learning rate may do without."
            )
    return 0
