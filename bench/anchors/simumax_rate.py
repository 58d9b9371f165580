"""Full evaluations (memory and time) a second of SimuMax on one core, to lie beside `search_bench`: simumax_rate.py CHECKOUT [MODEL STRATEGY SYSTEM]
(github.com/MooreThreads/SimuMax, 4dcaae5; needs numpy, pandas, sympy, matplotlib, tabulate, tqdm, graphviz). One model, configured once, estimated again and again."""
import contextlib, io, os, sys, time
sys.path.insert(0, sys.argv[1])
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM
model, strategy, system = sys.argv[2:5] if len(sys.argv) > 2 else ('deepseekv2', 'ep8_pp1_dp8_mbs1', 'a100_pcie')
at = lambda kind, name: os.path.join(sys.argv[1], 'configs', kind, name + '.json')
perf = PerfLLM()
with contextlib.redirect_stdout(io.StringIO()):
    perf.configure(strategy_config=StrategyConfig.init_from_config_file(at('strategy', strategy)), model_config=ModelConfig.init_from_config_file(at('models', model)),
                   system_config=SystemConfig.init_from_config_file(at('system', system)))
    def once():
        perf.run_estimate(); perf.analysis_mem(); perf.analysis_cost()
    once()
    n, begin = 0, time.process_time()
    while time.process_time() - begin < 10: once(); n += 1
    took = time.process_time() - begin
print(f'SimuMax {model} {strategy} {system}: {n / took:.1f} evaluations/s/core')
