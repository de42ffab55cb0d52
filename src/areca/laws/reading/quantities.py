"""The quantities that laws are made of: their names here, what they mean, and what tables usually call them."""

from dataclasses import dataclass

from areca.laws.reading.observations import QUANTITIES


@dataclass(frozen=True)
class Quantity:
    """What a column can be.

    `names` are usual names in small letters and digits only, the surest first; those of one group are equally sure.
    `positive`: zero and below are mistakes (its logarithm is taken).
    """

    meaning: str
    names: tuple[str, ...] = ()
    positive: bool = True


# The quantities that laws are made of, in the units they have everywhere. Any other name may be mapped as well.
KNOWN: dict[str, Quantity] = {
    "n_params": Quantity(
        "N, parameters without embeddings",
        (
            "nonembeddingparams nonembeddingparameters nonembedparams nparamsnonembedding nparamsnonembed nnonembed "
            "nnonembedding paramsnonembedding numparamsnonembedding nonembeddingnumparams",
            "params nparams parameters nparameters numparams numparameters paramcount parametercount modelparams "
            "modelparameters modelsize paramsn nparam n",
        ),
    ),
    "n_tokens": Quantity(
        "D, training tokens",
        (
            "traintokens trainingtokens ntraintokens tokenstrained tokensseen trainedtokens consumedtokens "
            "numinputtokensseen trainnuminputtokensseen traintokensseen",
            "tokens ntokens numtokens totaltokens tokencount tokensd ttokens d",
        ),
    ),
    "flops": Quantity(
        "C, training FLOPs of the whole run",
        (
            "trainingflops trainingflop trainflops trainflop trainingcompute traincompute totalflops totalflos "
            "traintotalflos trainingcomputeflops trainingcomputeflop",
            "flops flop compute computeflops computec flopsc c",
        ),
    ),
    "loss": Quantity(
        "final held-out loss in nats a token",
        (
            "evalloss valloss validationloss validloss testloss heldoutloss devloss lossval losseval losstest "
            "finalevalloss finalvalloss finalvalidationloss finaltestloss evallossfinal vallossfinal",
            "finalloss loss",
            "evalperplexity valperplexity validationperplexity evalppl valppl perplexity ppl",
            "bitspertoken evalbitspertoken valbitspertoken",
            "valbpb evalbpb bpb bitsperbyte valbitsperbyte evalbitsperbyte",
            "trainloss trainingloss finaltrainloss traintrainloss losstrain",
        ),
    ),
    "unique_tokens": Quantity("U, tokens in the data before any is repeated", ("uniquetokens uniquetokensu u",)),
    "steps": Quantity(
        "S, updates",
        ("trainsteps trainingsteps numsteps nsteps totalsteps", "globalstep trainglobalstep step"),
    ),
    "batch_tokens": Quantity("B, tokens a step", ("batchtokens tokensperbatch tokensperstep batchsizetokens",)),
    "learning_rate": Quantity("peak learning rate", ("learningrate lr peaklr maxlr peaklearningrate",)),
    "score": Quantity("a task's score, as a share of 1", ("score accuracy acc",), positive=False),
    "context": Quantity(
        "T, tokens in a sequence",
        ("context contextlength contextlen seqlen sequencelength seqlength maxseqlen blocksize nctx ctxlen",),
    ),
    "n_params_total": Quantity(
        "parameters with embeddings",
        (
            "totalparams totalparameters paramstotal parameterstotal nparamstotal numparamstotal totalnparams "
            "totalnumparams numtotalparams ntotalparams ntotal totalparamcount allparams paramswithembeddings "
            "nparamswithembeddings paramswithemb paramsincludingembeddings paramsinclembeddings paramsinclemb",
        ),
    ),
    "flops_exact": Quantity(
        "training FLOPs, every matrix product counted",
        (
            "flopsexact exactflops exactflop exacttrainingflops exacttrainflops trainingflopsexact trainflopsexact "
            "totalflopsexact exacttotalflops exactcompute computeexact",
        ),
    ),
    "flops_6nd": Quantity("6 N D"),
    "learning_rate_factor": Quantity("learning rate as a factor of the recipe's"),
    "d_model": Quantity("the model's width", ("dmodel hiddensize nembd",)),
    "n_layers": Quantity("the number of blocks", ("nlayers nlayer numlayers numhiddenlayers",)),
    "b_crit": Quantity("critical batch size in tokens", ("bcrit criticalbatchtokens",)),
    "bytes_per_token": Quantity("bytes of text in a token", ("bytespertoken",)),
    "seed": Quantity("of the initial parameters or of the order", positive=False),
}
OTHERS = tuple(name for name in KNOWN if name not in QUANTITIES)
SYMBOLS = {"n_params": "N", "n_tokens": "D", "flops": "C", "loss": "the loss"}
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in QUANTITIES}  # the others have --columns NAME=COLUMN
# What a column's name has in it that may be the quantity; shown to whoever has to choose, never taken.
HINTS = {
    "n_params": "param|modelsize|^size$|^n$", "n_tokens": "token|seq|sample|^d$", "flops": "flop|compute|^c$",
    "loss": "loss|nll|ppl|perplex|bpb|bits|^l$|xent|entropy|^val$|^eval$",
}  # fmt: skip
