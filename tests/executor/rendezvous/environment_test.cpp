#include "executor/rendezvous/environment.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace moeplan {
namespace {

std::string refusal(const Environment& e, const RankFlags& flags = {}) {
  try {
    (void)find_place(e, flags);
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return {};
}

void expect_in(const std::string& part, const std::string& text) { EXPECT_NE(text.find(part), std::string::npos) << text; }

const Environment kTorchrun{{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "8"}, {"GROUP_RANK", "1"},
                            {"GROUP_WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
const Environment kSlurm{{"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "9"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "1"},
                         {"SLURM_NTASKS", "16"}, {"SLURM_NNODES", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"}, {"SLURM_JOB_NODELIST", "gpu[07-08]"}};
const Environment kPet{{"PET_NNODES", "4"}, {"PET_NPROC_PER_NODE", "8"}, {"PET_NODE_RANK", "2"}, {"PET_MASTER_ADDR", "job-0"}, {"PET_MASTER_PORT", "29400"}};

Environment with(Environment e, const std::string& name, const std::string& value) {
  e[name] = value;
  return e;
}
Environment without(Environment e, const std::string& name) {
  e.erase(name);
  return e;
}

TEST(Environment, nothing_set_is_a_single_process) {
  const ProcessPlace p = find_place({});
  EXPECT_EQ(p.launcher, Launcher::single);
  EXPECT_EQ(p.rank, 0);
  EXPECT_EQ(p.world_size, 1);
}

TEST(Environment, a_torchrun_worker) {
  const ProcessPlace p = find_place(kTorchrun);
  EXPECT_EQ(p.launcher, Launcher::torchrun);
  EXPECT_EQ(p.rank, 9);
  EXPECT_EQ(p.world_size, 16);
  EXPECT_EQ(p.local_rank, 1);
  EXPECT_EQ(p.local_world_size, 8);
  EXPECT_EQ(p.node, 1);
  EXPECT_EQ(p.nodes, 2);
  EXPECT_EQ(p.host, "n0");
  EXPECT_EQ(p.port, 29500);
  EXPECT_FALSE(p.fork_local);
}

TEST(Environment, the_port_after_torchruns_own_store_is_taken) {
  EXPECT_EQ(find_place(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True")).port, 29501);
  EXPECT_EQ(find_place(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).port, 29500);
}

TEST(Environment, restarts_are_counted) { EXPECT_EQ(find_place(with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "3")).restart, 3); }

TEST(Environment, torchrun_without_address_is_refused) {
  expect_in("MASTER_ADDR: is missing", refusal(without(kTorchrun, "MASTER_ADDR")));
  expect_in("MASTER_PORT: is missing", refusal(without(kTorchrun, "MASTER_PORT")));
}

TEST(Environment, torchrun_without_local_rank_is_refused) { expect_in("LOCAL_RANK: is missing", refusal(without(kTorchrun, "LOCAL_RANK"))); }

TEST(Environment, a_rank_beyond_the_world_is_refused) { expect_in("torchrun: rank 16 of 16 ranks", refusal(with(kTorchrun, "RANK", "16"))); }

TEST(Environment, a_value_that_is_no_number_is_refused_naming_the_variable) {
  expect_in("RANK: \"9x\" is not a whole number", refusal(with(kTorchrun, "RANK", "9x")));
  expect_in("WORLD_SIZE: -1 is out of range", refusal(with(kTorchrun, "WORLD_SIZE", "-1")));
  expect_in("WORLD_SIZE: \"99999999999\" is not a whole number", refusal(with(kTorchrun, "WORLD_SIZE", "99999999999")));
}

TEST(Environment, pet_variables_start_all_ranks_of_a_node) {
  const ProcessPlace p = find_place(kPet);
  EXPECT_EQ(p.launcher, Launcher::pet);
  EXPECT_EQ(p.rank, 16);
  EXPECT_EQ(p.world_size, 32);
  EXPECT_EQ(p.node, 2);
  EXPECT_TRUE(p.fork_local);
  EXPECT_EQ(p.host, "job-0");
  EXPECT_EQ(p.port, 29400);
}

TEST(Environment, pet_auto_needs_the_number_of_devices) {
  const Environment e = with(kPet, "PET_NPROC_PER_NODE", "auto");
  expect_in("PET_NPROC_PER_NODE: \"auto\" depends on the node", refusal(e));
  EXPECT_EQ(find_place(e, {.local_world_size = 4}).world_size, 16);
}

TEST(Environment, an_elastic_number_of_nodes_is_refused) {
  expect_in("PET_NNODES: \"1:4\" is an elastic range", refusal(with(kPet, "PET_NNODES", "1:4")));
  EXPECT_EQ(find_place(with(kPet, "PET_NNODES", "4:4")).nodes, 4);
}

TEST(Environment, pet_takes_the_node_from_the_completion_index) {
  EXPECT_EQ(find_place(with(without(kPet, "PET_NODE_RANK"), "JOB_COMPLETION_INDEX", "3")).rank, 24);
}

TEST(Environment, a_slurm_task) {
  const ProcessPlace p = find_place(kSlurm);
  EXPECT_EQ(p.launcher, Launcher::slurm);
  EXPECT_EQ(p.rank, 9);
  EXPECT_EQ(p.world_size, 16);
  EXPECT_EQ(p.local_rank, 1);
  EXPECT_EQ(p.local_world_size, 8);
  EXPECT_EQ(p.host, "gpu07");
  EXPECT_GE(p.port, 20000);
  EXPECT_LT(p.port, 30000);
}

TEST(Environment, slurm_ports_differ_between_jobs_and_agree_within_one) {
  EXPECT_NE(find_place(kSlurm).port, find_place(with(kSlurm, "SLURM_JOB_ID", "4712")).port);
  EXPECT_EQ(find_place(kSlurm).port, find_place(with(kSlurm, "SLURM_PROCID", "3")).port);
}

TEST(Environment, slurm_counts_of_uneven_nodes) {
  Environment e = with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "10,6");
  EXPECT_EQ(find_place(e).local_world_size, 6);
  EXPECT_EQ(find_place(with(e, "SLURM_NODEID", "0")).local_world_size, 10);
}

TEST(Environment, slurm_node_lists_that_contradict_the_step_are_refused) {
  expect_in("SLURM_JOB_NODELIST: has 3 nodes, but the step has 2", refusal(with(kSlurm, "SLURM_JOB_NODELIST", "gpu[1-3]")));
}

TEST(Environment, a_malformed_slurm_node_list_is_refused) { expect_in("SLURM_JOB_NODELIST: [ without ]", refusal(with(kSlurm, "SLURM_JOB_NODELIST", "gpu[1-"))); }

TEST(Environment, the_step_node_list_comes_before_the_jobs) { EXPECT_EQ(find_place(with(kSlurm, "SLURM_STEP_NODELIST", "gpu[11-12]")).host, "gpu11"); }

TEST(Environment, an_open_mpi_rank) {
  const Environment e{{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
  const ProcessPlace p = find_place(e);
  EXPECT_EQ(p.launcher, Launcher::mpi);
  EXPECT_EQ(p.rank, 3);
  EXPECT_EQ(p.node, 1);
  EXPECT_EQ(p.nodes, 2);
  expect_in("MASTER_ADDR: is missing", refusal(without(e, "MASTER_ADDR")));
}

TEST(Environment, a_pmi_rank) {
  const ProcessPlace p = find_place({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(p.rank, 1);
  EXPECT_EQ(p.host, "127.0.0.1");
}

TEST(Environment, pmix_alone_is_not_enough) { expect_in("PMIX_RANK: gives the rank but not how many there are", refusal({{"PMIX_RANK", "1"}})); }

TEST(Environment, a_pod_of_a_jobset) {
  const ProcessPlace p = find_place({{"JOB_COMPLETION_INDEX", "1"}, {"MOEPLAN_NODES", "2"}, {"MOEPLAN_RANKS_PER_NODE", "8"}, {"MASTER_ADDR", "k3-node-0-0.k3"}});
  EXPECT_EQ(p.launcher, Launcher::jobset);
  EXPECT_EQ(p.rank, 8);
  EXPECT_EQ(p.world_size, 16);
  EXPECT_TRUE(p.fork_local);
  EXPECT_EQ(p.port, 29500);
}

TEST(Environment, a_completion_index_alone_is_a_single_process) { EXPECT_EQ(find_place({{"JOB_COMPLETION_INDEX", "1"}}).launcher, Launcher::single); }

TEST(Environment, a_leader_worker_set) {
  const ProcessPlace p = find_place({{"LWS_LEADER_ADDRESS", "lws-0.lws.default"}, {"LWS_GROUP_SIZE", "4"}, {"LWS_WORKER_INDEX", "2"}, {"MOEPLAN_RANKS_PER_NODE", "8"}});
  EXPECT_EQ(p.launcher, Launcher::lws);
  EXPECT_EQ(p.rank, 16);
  EXPECT_EQ(p.host, "lws-0.lws.default");
}

TEST(Environment, launchers_win_in_the_documented_order) {
  Environment all = kPet;
  for (const auto& e : {kSlurm, kTorchrun, Environment{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"LWS_WORKER_INDEX", "0"}, {"LWS_GROUP_SIZE", "1"}}})
    all.insert(e.begin(), e.end());
  EXPECT_EQ(find_place(all, {.rank = 0, .world_size = 1}).launcher, Launcher::flags);
  EXPECT_EQ(find_place(all).launcher, Launcher::torchrun);
  all = without(without(all, "RANK"), "WORLD_SIZE");
  EXPECT_EQ(find_place(all).launcher, Launcher::pet);
  for (const char* n : {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK"}) all.erase(n);
  EXPECT_EQ(find_place(all).launcher, Launcher::slurm);
  all.erase("SLURM_PROCID");
  EXPECT_EQ(find_place(all).launcher, Launcher::mpi);
  all.erase("OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(find_place(all).launcher, Launcher::lws);
}

TEST(Environment, flags_need_rank_and_world_size) {
  expect_in("--world-size: is missing", refusal({}, {.rank = 1}));
  expect_in("--rank: is missing", refusal({}, {.world_size = 2, .port = 5000}));
  expect_in("--rendezvous-port: is missing", refusal({}, {.rank = 1, .world_size = 2}));
  expect_in("--local-world-size: is missing beside --rendezvous-host \"n0\"; how many of the ranks are on this machine: 2 if all are", refusal({}, {.rank = 1, .world_size = 2, .port = 5000, .host = "n0"}));
  EXPECT_EQ(find_place({}, {.rank = 1, .world_size = 2, .port = 5000, .host = "localhost"}).nodes, 1);
  const ProcessPlace p = find_place({}, {.rank = 5, .world_size = 8, .local_world_size = 4, .port = 5000, .host = "n0"});
  EXPECT_EQ(p.node, 1);
  EXPECT_EQ(p.local_rank, 1);
}

TEST(Environment, a_flag_overrides_one_value) { EXPECT_EQ(find_place(kSlurm, {.port = 31000}).port, 31000); }

TEST(Environment, a_privileged_port_is_refused) { expect_in("port 22; use a port from 1024", refusal(with(kTorchrun, "MASTER_PORT", "22"))); }

TEST(Environment, a_host_that_looks_like_an_option_is_refused) {
  expect_in("is no host name", refusal(with(kTorchrun, "MASTER_ADDR", "-oProxyCommand=x")));
  expect_in("is no host name", refusal(with(kTorchrun, "MASTER_ADDR", "a b")));
}

TEST(Environment, explain_says_what_won_and_what_was_not_used) {
  Environment e = kTorchrun;
  e.insert(kSlurm.begin(), kSlurm.end());
  const std::string text = explain(e);
  expect_in("launcher: torchrun", text);
  expect_in("rank 9 of 16, local rank 1 of 8, node 1 of 2", text);
  expect_in("used        RANK=\"9\"  rank", text);
  expect_in("not used    SLURM_PROCID=\"9\"  torchrun comes first", text);
}

TEST(Environment, explain_lists_every_problem_and_throws_none) {
  const std::string text = explain(with(without(kTorchrun, "MASTER_ADDR"), "LOCAL_RANK", "8"));
  expect_in("problem: MASTER_ADDR: is missing", text);
  expect_in("problem: torchrun: local rank 8 of 8 ranks on the node", text);
}

TEST(Environment, explain_escapes_values) {
  const std::string text = explain(with(kTorchrun, "RANK", "1\x1b[2J\n"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Environment, explain_says_when_a_slurm_job_was_not_started_by_srun) { expect_in("not started by srun", explain({{"SLURM_JOB_ID", "1"}})); }

TEST(Nodelist, ranges_lists_and_padding) {
  EXPECT_EQ(expand_nodelist("a[01-03,7],b"), (std::vector<std::string>{"a01", "a02", "a03", "a7", "b"}));
  EXPECT_EQ(expand_nodelist("n[8-11]"), (std::vector<std::string>{"n8", "n9", "n10", "n11"}));
  EXPECT_EQ(expand_nodelist("n[098-101]"), (std::vector<std::string>{"n098", "n099", "n100", "n101"}));
  EXPECT_EQ(expand_nodelist("single"), (std::vector<std::string>{"single"}));
}

TEST(Nodelist, several_brackets_multiply_with_the_last_fastest) {
  EXPECT_EQ(expand_nodelist("rack[1-2]n[0-1]-ib"), (std::vector<std::string>{"rack1n0-ib", "rack1n1-ib", "rack2n0-ib", "rack2n1-ib"}));
}

TEST(Nodelist, malformed_lists_are_refused) {
  for (const char* list : {"", ",", "a,", "a,,b", "a[", "a[]", "a[1-", "a[1-2", "a[2-1]", "a[1;2]", "a[x]", "a]", "a b", "-o", "a[1-2],-b", "$(x)", "a[0-9999999]", "a[0-99999]b[0-99999]", "a[1234567890]"})
    EXPECT_THROW((void)expand_nodelist(list), InputError) << list;
}

}  // namespace
}  // namespace moeplan
