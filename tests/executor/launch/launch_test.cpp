#include "executor/launch/launch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "executor/launch/quote.hpp"

namespace moeplan {
namespace {

/// Names that break naive quoting, 100 of them, none with NUL or line breaks.
std::vector<std::string> hostile_names() {
  std::vector<std::string> names{" ", "'", "\"", "\\", "$", "`", "-", "--", "-rf", "-oProxyCommand=x", "a b", "a  b", " a", "a ", "a'b", "''", "'''", "a'b'c", "a\"b", "\"\"",
                                 "a\\", "\\'", "\\\\", "$HOME", "${HOME}", "$(touch x)", "`touch x`", "$((1+1))", "$'a'", "$\"a\"", "!", "!!", "!x", "#", "#a", "a#b", "a;touch x",
                                 "a&touch x", "a|touch x", "a&&touch x", "a||touch x", ">x", "<x", ">>x", "2>x", "a\tb", "\t", "*", "?", "[a]", "[!a]", "{a,b}", "{1..9}", "~", "~root",
                                 "a=b", "=", "%", "%s", "%n", "\x01", "\x1b[2J", "\x7f", "a\x08", "(", ")", "(a)", "[", "]", "{", "}", "^", ",", ".", "..", "../..", "/",
                                 "a'b\"c\"d;$(touch x)", "' ; touch x ; '", "';touch x;'", "\"; touch x; \"", "'$(touch x)'", "'\\''", "\\", "\\n", "\\x", "é", "日本", "😀", "a\u00a0b", "\u202e",
                                 "\u2028", "\ufeff", "\u0085", "null", "true", "0x10", "1e9", "- a", "a: b"};
  names.push_back(std::string(255, 'x'));
  names.push_back(std::string(255, '\''));
  return names;
}

/// Output of `bash FILE`, run in an empty directory that must stay empty.
std::string run_bash(const std::string& script) {
  const auto dir = std::filesystem::path(::testing::TempDir()) / ("launch_" + std::to_string(getpid()));
  const auto inside = dir / "empty";
  std::filesystem::create_directories(inside);
  std::ofstream(dir / "script.sh") << script;
  std::string out;
  FILE* pipe = popen(("cd '" + inside.string() + "' && bash ../script.sh").c_str(), "r");
  std::array<char, 4096> block{};
  for (std::size_t n; (n = fread(block.data(), 1, block.size(), pipe)) > 0;) out.append(block.data(), n);
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_TRUE(std::filesystem::is_empty(inside)) << "a side effect of\n" << script;
  std::filesystem::remove_all(dir);
  return out;
}

bool have(const char* program) { return std::system((std::string("command -v ") + program + " >/dev/null 2>&1").c_str()) == 0; }

void expect_shellcheck_clean(const LaunchFile& file) {
  const auto path = std::filesystem::path(::testing::TempDir()) / ("check_" + std::to_string(getpid()) + ".sh");
  std::ofstream(path) << file.text;
  EXPECT_EQ(std::system(("shellcheck -s bash '" + path.string() + "'").c_str()), 0) << file.text;
  std::filesystem::remove(path);
}

LaunchRequest request() {
  return {.nodes = 16, .devices_per_node = 8, .name = "k3-lora", .program = "/opt/moeplan/bin/moeplan", .arguments = {"plan.json", "--weights", "/data/k3"},
          .environment = {{"NCCL_DEBUG", "WARN"}}, .partition = "gpu", .account = "lab", .rendezvous_host = "n0", .image = "local/moeplan:1"};
}
LaunchRequest hostile(const std::string& name) {
  LaunchRequest r = request();
  r.program = name;
  r.arguments = {name, "--weights", name};
  r.environment = {{"NOTE", name}};
  return r;
}

std::string refusal(LaunchKind kind, const LaunchRequest& r) {
  try {
    (void)launch_file(kind, r);
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    return e.what();
  }
  return {};
}

void expect_in(const std::string& part, const std::string& text) { EXPECT_NE(text.find(part), std::string::npos) << text; }

TEST(Quote, a_hundred_hostile_names_come_back_from_a_real_shell) {
  const auto names = hostile_names();
  ASSERT_GE(names.size(), 100u);
  std::string script = "printf '%s\\0'", want;
  for (const auto& n : names) {
    script += " " + shell_word(n, "name");
    want += n + '\0';
  }
  EXPECT_EQ(run_bash(script + "\n"), want);
}

TEST(Quote, line_breaks_and_nul_are_refused) {
  for (const char* bad : {"a\nb", "a\rb", "\n"}) EXPECT_THROW((void)shell_word(bad, "name"), InputError);
  EXPECT_THROW((void)shell_word(std::string_view("a\0b", 3), "name"), InputError);
}

TEST(Quote, a_path_never_looks_like_an_option) {
  EXPECT_EQ(shell_path("-rf", "path"), "'./-rf'");
  EXPECT_EQ(shell_path("a", "path"), "'a'");
  EXPECT_THROW((void)shell_path("", "path"), InputError);
}

TEST(Quote, yaml_escapes_what_is_not_ascii) {
  EXPECT_EQ(yaml_text("a\"b\\", "x"), "\"a\\\"b\\\\\"");
  EXPECT_EQ(yaml_text("é", "x"), "\"\\u00e9\"");
  EXPECT_EQ(yaml_text("😀", "x"), "\"\\U0001f600\"");
  EXPECT_EQ(yaml_text("\\ud83d", "x"), "\"\\\\ud83d\"");
  EXPECT_THROW((void)yaml_text("\xff", "x"), InputError);
}

TEST(Quote, names_in_directives_are_checked_against_a_list) {
  EXPECT_EQ(checked_name("gpu_a-1", "partition", "-_"), "gpu_a-1");
  for (const char* bad : {"", "-a", "a b", "a\nb", "a;b", "$(x)", "a'"}) EXPECT_THROW((void)checked_name(bad, "partition", "-_"), InputError) << bad;
}

TEST(Launch, slurm_asks_for_the_plans_nodes_and_one_task_per_device) {
  const LaunchFile f = launch_file(LaunchKind::slurm, request());
  EXPECT_EQ(f.name, "k3-lora.sbatch");
  for (const char* line : {"#SBATCH --nodes=16\n", "#SBATCH --ntasks-per-node=8\n", "#SBATCH --gpus-per-node=8\n", "#SBATCH --output=%x-%j.out\n", "#SBATCH --signal=USR1@120\n",
                           "#SBATCH --no-requeue\n", "exec srun --wait=60 --kill-on-bad-exit=1", "export NCCL_DEBUG='WARN'\n", "'/opt/moeplan/bin/moeplan' run \\\n    'plan.json'"})
    expect_in(line, f.text);
}

TEST(Launch, the_token_is_in_no_command_line) {
  for (const auto kind : {LaunchKind::slurm, LaunchKind::torchrun}) {
    const std::string text = launch_file(kind, request()).text;
    EXPECT_EQ(text.find("--token "), std::string::npos);
    expect_in("MOEPLAN_TOKEN_FILE", text);
  }
}

TEST(Launch, torchrun_over_nodes_takes_the_node_number_as_argument) {
  const LaunchFile f = launch_file(LaunchKind::torchrun, request());
  expect_in("exec torchrun --nnodes=16 --nproc-per-node=8 --max-restarts=0", f.text);
  expect_in("--node-rank=\"$node\" --master-addr='n0' --master-port=29500", f.text);
}

TEST(Launch, torchrun_needs_a_host_for_several_nodes) {
  LaunchRequest r = request();
  r.rendezvous_host.clear();
  expect_in("launch rendezvous host: is missing", refusal(LaunchKind::torchrun, r));
  r.nodes = 1;
  EXPECT_EQ(refusal(LaunchKind::torchrun, r), "");
}

TEST(Launch, scripts_are_clean_under_shellcheck) {
  if (!have("shellcheck")) GTEST_SKIP() << "shellcheck is not installed";
  LaunchRequest one = request();
  one.nodes = 1;
  one.requeue = true;
  for (const auto kind : {LaunchKind::slurm, LaunchKind::torchrun})
    for (const auto& r : {request(), one, hostile("a'b\"c\"d;$(touch x)"), hostile("`x` $HOME *")}) expect_shellcheck_clean(launch_file(kind, r));
}

/// Runs the script with functions in place of srun and torchrun that print the command they got.
std::string arguments_seen(std::string text, const std::string& launcher, const std::string& before) {
  const std::size_t at = text.find("exec " + launcher);
  text.replace(at, 5 + launcher.size(), "printf '%s\\0' \"$NOTE\" ");
  // /dev/urandom and mktemp stay; the token file goes to the test's own place.
  return run_bash(before + text + "\nrm -f -- \"$MOEPLAN_TOKEN_FILE\"\n");
}

TEST(Launch, hostile_names_reach_the_program_unchanged) {
  for (const auto& name : hostile_names()) {
    if (name.size() > 200) continue;
    const std::string program = name[0] == '-' ? "./" + name : name;
    const std::string tail = program + '\0' + "run" + '\0' + name + '\0' + "--weights" + '\0' + name + '\0';
    const std::string out = arguments_seen(launch_file(LaunchKind::slurm, hostile(name)).text, "srun", "SLURM_JOB_ID=1\n");
    ASSERT_GE(out.size(), tail.size());
    EXPECT_EQ(out.substr(0, name.size() + 1), name + '\0');
    EXPECT_EQ(out.substr(out.size() - tail.size()), tail) << name;
  }
}

TEST(Launch, hostile_names_pass_torchruns_line_unchanged) {
  for (const char* text : {"a'b\"c\"d;$(touch x)", "-rf", "$HOME", "`touch x`", "a b", "*"}) {
    const std::string name = text, program = name[0] == '-' ? "./" + name : name;
    LaunchRequest r = hostile(name);
    r.nodes = 1;
    const std::string tail = std::string("--no-python") + '\0' + "--" + '\0' + program + '\0' + "run" + '\0' + name + '\0' + "--weights" + '\0' + name + '\0';
    const std::string out = arguments_seen(launch_file(LaunchKind::torchrun, r).text, "torchrun", "");
    ASSERT_GE(out.size(), tail.size());
    EXPECT_EQ(out.substr(out.size() - tail.size()), tail) << name;
  }
}

TEST(Launch, a_jobset_starts_one_pod_per_node) {
  const LaunchFile f = launch_file(LaunchKind::jobset, request());
  for (const char* line : {"kind: JobSet\n", "parallelism: 16\n", "completions: 16\n", "nvidia.com/gpu: 8\n", "\"MOEPLAN_NODES\"\n                      value: \"16\"", "\"k3-lora-ranks-0-0.k3-lora\"", "defaultMode: 0400\n"})
    expect_in(line, f.text);
}

TEST(Launch, a_jobset_reads_back_as_yaml_with_hostile_names_unchanged) {
  if (std::system("python3 -c 'import yaml' >/dev/null 2>&1") != 0) GTEST_SKIP() << "no YAML reader installed (python3 with yaml)";
  const auto dir = std::filesystem::path(::testing::TempDir()) / ("jobset_" + std::to_string(getpid()));
  std::filesystem::create_directories(dir);
  LaunchRequest r = request();
  r.arguments = hostile_names();
  std::ofstream(dir / "job.yaml") << launch_file(LaunchKind::jobset, r).text;
  std::ofstream want(dir / "want");
  for (const auto& n : r.arguments) want << n << '\0';
  want.close();
  std::ofstream(dir / "read.py") << R"(import sys, yaml
doc = yaml.safe_load(open(sys.argv[1], encoding="utf-8"))
spec = doc["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
command = spec["containers"][0]["command"]
got = b"".join(c.replace("$$", "$").encode() + b"\0" for c in command[2:])
assert all(isinstance(e["value"], str) for e in spec["containers"][0]["env"])
sys.exit(0 if got == open(sys.argv[2], "rb").read() else 1)
)";
  EXPECT_EQ(std::system(("python3 '" + (dir / "read.py").string() + "' '" + (dir / "job.yaml").string() + "' '" + (dir / "want").string() + "'").c_str()), 0);
  std::filesystem::remove_all(dir);
}

TEST(Launch, unsafe_names_are_refused_naming_the_field) {
  LaunchRequest r = request();
  r.partition = "gpu\n#SBATCH --uid=0";
  expect_in("launch partition: ", refusal(LaunchKind::slurm, r));
  r = request();
  r.name = "a b";
  expect_in("launch job name: \"a b\" is not allowed here", refusal(LaunchKind::slurm, r));
  r = request();
  r.environment = {{"A;touch x", "1"}};
  expect_in("launch environment: ", refusal(LaunchKind::slurm, r));
  r.environment = {{"LD_PRELOAD", "x.so"}};
  expect_in("LD_PRELOAD is not set by launch files", refusal(LaunchKind::slurm, r));
  r = request();
  r.rendezvous_host = "-oProxyCommand=x";
  expect_in("launch rendezvous host", refusal(LaunchKind::torchrun, r));
  r = request();
  r.name = "K3";
  expect_in("is no Kubernetes name", refusal(LaunchKind::jobset, r));
  r = request();
  r.image = "x\ny";
  expect_in("launch image", refusal(LaunchKind::jobset, r));
  r = request();
  r.time = "1h";
  expect_in("launch time", refusal(LaunchKind::slurm, r));
}

TEST(Launch, numbers_out_of_range_are_refused) {
  LaunchRequest r = request();
  r.nodes = 0;
  expect_in("launch nodes: 0 is out of range", refusal(LaunchKind::slurm, r));
  r = request();
  r.port = 22;
  expect_in("launch port: 22 is out of range", refusal(LaunchKind::torchrun, r));
}

}  // namespace
}  // namespace moeplan
