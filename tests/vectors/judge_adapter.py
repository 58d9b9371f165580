#!/usr/bin/env python3
"""An adapter of moeplan's, loaded by stock PEFT: the loss over a batch is the one that moeplan computes with it.

    python3 judge_adapter.py MOEPLAN [NAME ...]        needs torch, transformers and peft; says SKIPPED without them

For each tiny model under models/ (config.json and weights as transformers saved them) moeplan trains LoRA pairs on attention, dense, shared and routed
experts for 20 steps in float32 and writes the adapter; then moeplan starts from it again, and PEFT loads it over the same weights. The loss of the first
step before its update is a mean over all labels of the batch, so it depends on every logit.
"""
import json, os, re, shutil, subprocess, sys, tempfile
try:
    import torch, transformers, peft, warnings
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(0)

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTH, ROWS = 12, 2
# PEFT 0.21 has tables by model type: it joins gate and up of experts under twice the rank, takes gate_proj, up_proj and down_proj of dense and shared
# layers for the experts of transformers 4, or refuses out_proj of Mamba layers. Under a type that it does not know it loads what the files say.
UNKNOWN_TYPE = ("deepseek_v3", "deepseek_v3_yarn", "deepseek_v32", "glm_moe_dsa", "hunyuan_v1_moe", "nemotron_h", "qwen3_next")
# One pair for each expert and matrix: families in which PEFT stacks them itself, by those tables; then without dense and shared layers in some.
PER_EXPERT = ("deepseek_v3", "deepseek_v3_yarn", "mixtral", "olmoe", "qwen3_moe", "qwen3_next")
NO_DENSE = ("deepseek_v3", "deepseek_v3_yarn", "qwen3_next")


def moeplan(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"moeplan {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def loss_of(model, rows):
    ids = torch.tensor(rows)
    with torch.no_grad():
        logits = model(input_ids=ids).logits.double()
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)).item()


def judge(program, name, dialect):
    home = os.path.join(HERE, "models", name)
    vocabulary = json.load(open(os.path.join(home, "config.json")))["vocab_size"]
    with tempfile.TemporaryDirectory() as at:
        path = lambda file: os.path.join(at, file)
        torch.manual_seed(3)
        rows = torch.randint(0, vocabulary, (ROWS, LENGTH)).tolist()
        with open(path("data.jsonl"), "w") as f:
            for row in rows:
                f.write(json.dumps({"input_ids": row}) + "\n")
        targets = ["attention", "experts"] if dialect == "D1" and name in NO_DENSE else ["attention", "dense", "shared", "experts"]
        base_only = path("base")   # without the adapter that lies beside the vectors, which transformers would load too
        os.mkdir(base_only)
        for file in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(home, file), base_only)
        plan = ["plan", os.path.join(base_only, "config.json"), "--device", "cpu", "--gpus", "1", "--runtime", "cpu", "--seq", str(LENGTH), "--global-batch", str(ROWS), "--micro-batch", str(ROWS),
                "--rank", "2", "-o", path("plan.json")]
        while True:
            try:
                moeplan(program, *plan, "--targets", ",".join(targets))
                break
            except SystemExit as e:   # a class that this model has no weights of
                lacks = re.search("no ([a-z]+) weights", str(e))
                if not lacks:
                    raise
                targets.remove(lacks[1])
        run = ["run", path("plan.json"), "--float32", "--weights", base_only, "--data", path("data.jsonl")]
        moeplan(program, *run, "--steps", "20", "--lr", "0.02", "--adapter", path("adapter"), "--adapter-dialect", dialect)
        moeplan(program, *run, "--steps", "1", "--from-adapter", path("adapter"), "-o", path("measured.json"))
        ours = json.load(open(path("measured.json")))["steps"][0]["loss"]
        config = json.load(open(os.path.join(base_only, "config.json")))
        if "indexed_attention" in config.get("layer_types", []):   # transformers does not read this word, which it writes itself
            del config["layer_types"]
            json.dump(config, open(os.path.join(base_only, "config.json"), "w"))
        base = transformers.AutoModelForCausalLM.from_pretrained(base_only, dtype=torch.float32, attn_implementation="eager")
        if hasattr(base.config, "_experts_implementation"):
            base.config._experts_implementation = "eager"   # grouped products want strides of 16 bytes
        before = loss_of(base.eval(), rows)
        if dialect == "D3" and name in UNKNOWN_TYPE:
            base.config.model_type = "unknown"
        theirs = loss_of(peft.PeftModel.from_pretrained(base, path("adapter")).eval(), rows)
    equal = abs(ours - theirs) < 1e-5 and before - theirs > 0.1   # trained: the pairs do something
    print(f"{'ok' if equal else 'DIFFERS':8} {name:18} {dialect}  without {before:.6f}  moeplan {ours:.6f}  PEFT {theirs:.6f}")
    return equal


def main():
    names = sys.argv[2:] or sorted(os.listdir(os.path.join(HERE, "models")))
    print(f"transformers {transformers.__version__}, peft {peft.__version__}")
    faults = 0
    for name in names:
        for dialect in ("D3", "D1") if name in PER_EXPERT else ("D3",):
            try:
                faults += not judge(sys.argv[1], name, dialect)
            except (Exception, SystemExit) as e:
                faults += 1
                print(f"FAILED   {name} {dialect}: {str(e)[:300]}".replace("\n", " "))
    sys.exit(1 if faults else 0)


main()
