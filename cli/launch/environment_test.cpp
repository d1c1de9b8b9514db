#include "cli/launch/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "cli/launch/slurm.h"
#include "cli/launch/threads.h"
#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

using Variables = std::map<std::string, std::string>;

Lookup among(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

// The message with which these variables are refused; empty when they are not.
std::string refusal(const Variables& variables) {
  try {
    detect_launch(among(variables));
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "4242"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_ERROR_FILE", "/x/error.json"}};

const Variables kSlurm = {{"SLURM_PROCID", "3"},
                          {"SLURM_NTASKS", "6"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_JOB_ID", "981234"},
                          {"SLURM_TASKS_PER_NODE", "2(x3)"},
                          {"SLURM_JOB_NODELIST", "gpu[007-009]"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Environment, NothingIsOneProcess) {
  const auto e = detect_launch(among({}));
  EXPECT_EQ(e.launcher, Launcher::kNone);
  EXPECT_EQ(e.world_size, 1);
  EXPECT_FALSE(hosts_store(e));
}

TEST(Environment, Torchrun) {
  const auto e = detect_launch(among(kTorchrun));
  EXPECT_EQ(e.launcher, Launcher::kTorchrun);
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.world_size, 8);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, 4);
  EXPECT_EQ(e.master_addr, "node7");
  EXPECT_EQ(e.master_port, 4242);
  EXPECT_TRUE(e.agent_store);
  EXPECT_EQ(e.error_file, "/x/error.json");
  EXPECT_EQ(e.attempt, 2);
}

TEST(Environment, UnderAnAgentRankZeroHostsNothing) {
  const Variables zero = with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}});
  EXPECT_FALSE(hosts_store(detect_launch(among(zero))));
  EXPECT_TRUE(hosts_store(detect_launch(among(without(zero, "TORCHELASTIC_USE_AGENT_STORE")))));
}

TEST(Environment, RankWithoutLocalRankIsRefusedWithTheReason) {
  const std::string text =
      refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  EXPECT_NE(text.find("LOCAL_RANK is not"), std::string::npos) << text;
  EXPECT_NE(text.find("pods"), std::string::npos) << text;
  EXPECT_NE(text.find("torchrun --no-python"), std::string::npos) << text;
}

TEST(Environment, RefusalsNameTheVariable) {
  const auto expect = [](const Variables& variables, const std::string& part) {
    const std::string text = refusal(variables);
    EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in \"" << text << "\"";
  };
  expect(with(kTorchrun, {{"RANK", "8"}}), "RANK=8 must be below WORLD_SIZE=8");
  expect(with(kTorchrun, {{"RANK", "-1"}}), "RANK must be an integer from 0");
  expect(with(kTorchrun, {{"RANK", "1x"}}), "got \"1x\"");
  expect(with(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4 must be below LOCAL_WORLD_SIZE=4");
  expect(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "LOCAL_WORLD_SIZE=9 must be at most WORLD_SIZE=8");
  expect(with(kTorchrun, {{"RANK", "0"}}), "LOCAL_RANK=1 must be at most RANK=0");
  expect(with(kTorchrun, {{"MASTER_PORT", "70000"}}), "MASTER_PORT must be an integer from 1 to 65535");
  expect(without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is not set");
  expect(without(kTorchrun, "WORLD_SIZE"), "WORLD_SIZE is not set");
  expect(with(kSlurm, {{"SLURM_PROCID", "6"}}), "SLURM_PROCID=6 must be below SLURM_NTASKS=6");
  expect(without(kSlurm, "SLURM_LOCALID"), "SLURM_LOCALID is not set");
  expect(without(kSlurm, "SLURM_JOB_NODELIST"), "SLURM_JOB_NODELIST");
  expect({{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE is not set, but Open MPI");
}

TEST(Environment, Slurm) {
  const auto e = detect_launch(among(kSlurm));
  EXPECT_EQ(e.launcher, Launcher::kSlurm);
  EXPECT_EQ(e.rank, 3);
  EXPECT_EQ(e.world_size, 6);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, 2);
  EXPECT_EQ(e.master_addr, "gpu007");
  EXPECT_EQ(e.master_port_source, "derived from SLURM_JOB_ID");
  EXPECT_GE(e.master_port, 15000);
  EXPECT_LT(e.master_port, 30000);
  // The same on every rank, another for another job or step.
  EXPECT_EQ(e.master_port,
            detect_launch(among(with(kSlurm, {{"SLURM_PROCID", "2"}, {"SLURM_LOCALID", "0"}}))).master_port);
  EXPECT_NE(e.master_port, detect_launch(among(with(kSlurm, {{"SLURM_JOB_ID", "981235"}}))).master_port);
  EXPECT_NE(e.master_port, detect_launch(among(with(kSlurm, {{"SLURM_STEP_ID", "1"}}))).master_port);
  EXPECT_EQ(detect_launch(among(with(kSlurm, {{"MASTER_PORT", "77"}}))).master_port, 77);
}

TEST(Environment, SlurmWithItsThreeVariablesAlone) {
  const auto e = detect_launch(among({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}}));
  EXPECT_EQ(e.local_world_size, 2);
  EXPECT_EQ(e.master_addr, "127.0.0.1");
}

TEST(Environment, ABatchScriptIsNotATask) {
  const Variables script = with(without(kSlurm, "SLURM_STEP_ID"), {{"ENVIRONMENT", "BATCH"}});
  EXPECT_NE(refusal(script).find("srun steppe train"), std::string::npos) << refusal(script);
  EXPECT_NO_THROW(check_may_spawn(among(script)));  // --ranks is the way there
  EXPECT_EQ(refusal(with(script, {{"SLURM_STEP_ID", "0"}})), "");
}

TEST(Environment, OpenMpiBeforeTheSlurmAroundIt) {
  const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "123@1"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_JOB_NODELIST", "n[3,5]"}};
  const auto e = detect_launch(among(mpi));
  EXPECT_EQ(e.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(e.rank, 3);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world_size, 2);
  EXPECT_EQ(e.master_addr, "n3");
  EXPECT_EQ(e.master_port_source, "derived from PMIX_NAMESPACE");
  EXPECT_NE(refusal(without(mpi, "SLURM_JOB_NODELIST")).find("MASTER_ADDR is not set"), std::string::npos);
}

TEST(Environment, Pmi) {
  const Variables pmi = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const auto e = detect_launch(among(pmi));
  EXPECT_EQ(e.launcher, Launcher::kPmi);
  EXPECT_EQ(e.rank, 1);
  EXPECT_EQ(e.master_addr, "127.0.0.1");
  EXPECT_NE(refusal(without(pmi, "MPI_LOCALRANKID")).find("MPI_LOCALRANKID is not set"), std::string::npos);
  // srun --mpi=pmi2 gives no local rank, Slurm does.
  const auto slurm = detect_launch(among(with(kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "6"}})));
  EXPECT_EQ(slurm.launcher, Launcher::kSlurm);
}

TEST(Environment, Kubeflow) {
  const Variables pod = {{"PET_NNODES", "3"},
                         {"PET_NODE_RANK", "2"},
                         {"PET_NPROC_PER_NODE", "1"},
                         {"PET_MASTER_ADDR", "job-0"},
                         {"PET_MASTER_PORT", "29400"}};
  const auto e = detect_launch(among(pod));
  EXPECT_EQ(e.rank, 2);
  EXPECT_EQ(e.world_size, 3);
  EXPECT_EQ(e.local_world_size, 1);
  EXPECT_EQ(e.master_addr, "job-0");
  EXPECT_EQ(e.master_port, 29400);
  EXPECT_NE(refusal(with(pod, {{"PET_NPROC_PER_NODE", "8"}})).find("PET_NPROC_PER_NODE=8"),
            std::string::npos);
  EXPECT_NE(refusal(without(pod, "PET_NODE_RANK")).find("PET_NODE_RANK is not set"), std::string::npos);
  EXPECT_NE(refusal(with(pod, {{"PET_NNODES", "1:4"}})).find("PET_NNODES must be an integer"),
            std::string::npos);
}

TEST(Environment, RanksUnderALauncherAreRefused) {
  EXPECT_THROW(check_may_spawn(among(kTorchrun)), ValueError);
  EXPECT_THROW(check_may_spawn(among(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "6"}}))), ValueError);
  EXPECT_NO_THROW(check_may_spawn(among({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})));
  EXPECT_NO_THROW(check_may_spawn(among({})));
}

TEST(Slurm, FirstHost) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,n2"), "n1");
  EXPECT_EQ(first_host("gpu[003-008,012],login1"), "gpu003");
  EXPECT_EQ(first_host("gpu[12]"), "gpu12");
  EXPECT_EQ(first_host("gpu[12,14-15].cluster"), "gpu12.cluster");
  EXPECT_EQ(first_host("rack[1-2]node[07,09]"), "rack1node07");
  EXPECT_EQ(first_host("a-b-01,c[2-3]"), "a-b-01");
  for (const char* bad : {"", ",n1", "n[1-2", "n]1", "n[]"}) EXPECT_THROW(first_host(bad), ValueError) << bad;
}

TEST(Slurm, TasksPerNode) {
  EXPECT_EQ(tasks_per_node("4"), std::vector<int>({4}));
  EXPECT_EQ(tasks_per_node("2(x3),1"), std::vector<int>({2, 2, 2, 1}));
  for (const char* bad : {"", "x", "2(x)", "2(x3", "0", "2,,1"})
    EXPECT_THROW(tasks_per_node(bad), ValueError) << bad;
}

TEST(Threads, CoresDividedByLocalRanks) {
  LaunchEnvironment e;
  e.local_world_size = 4;
  EXPECT_EQ(automatic_threads(e, {16, 16}, among({})), 4);
  EXPECT_EQ(automatic_threads(e, {3, 16}, among({})), 3);  // bound to three
  EXPECT_EQ(automatic_threads(e, {8, 32}, among({})), 8);  // bound to its share: not divided again
  EXPECT_EQ(automatic_threads(e, {2, 2}, among({})), 1);
}

TEST(Threads, TorchrunsOneCountsAsUnset) {
  const Lookup one = among({{"OMP_NUM_THREADS", "1"}});
  LaunchEnvironment e;
  e.launcher = Launcher::kTorchrun;
  e.local_world_size = 2;
  EXPECT_EQ(automatic_threads(e, {8, 8}, one), 4);
  EXPECT_EQ(automatic_threads(e, {8, 8}, among({{"OMP_NUM_THREADS", "3"}})), 3);
  e.local_world_size = 1;  // torchrun sets nothing then: the user did
  EXPECT_EQ(automatic_threads(e, {8, 8}, one), 1);
  e.launcher = Launcher::kLocal;
  e.local_world_size = 2;
  EXPECT_EQ(automatic_threads(e, {8, 8}, one), 1);
  EXPECT_THROW(automatic_threads(e, {8, 8}, among({{"OMP_NUM_THREADS", "many"}})), ValueError);
}

TEST(Threads, CoresOfThisMachine) {
  const Cores cores = count_cores(among({}));
  EXPECT_GE(cores.own, 1);
  EXPECT_GE(cores.node, cores.own);
  EXPECT_EQ(count_cores(among({{"SLURM_CPUS_ON_NODE", "1"}})).node, 1);
}

}  // namespace
}  // namespace steppe::launch
