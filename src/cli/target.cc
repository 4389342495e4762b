// SPDX-License-Identifier: Apache-2.0
// infercluster target
#include "target/target.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <thread>

#include "base/units.h"
#include "cli/common.h"
#include "cli/output.h"
#include "cli/secret_files.h"
#include "cli/signals.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string listen = "127.0.0.1:4420";
  std::vector<std::string> objects;
  std::vector<std::string> hosts;
  std::string nqn;
  std::string state;
  SecretFiles secrets;
  unsigned shards = 1;
  Common common;
};

nlohmann::ordered_json to_json(const target::Target& target, const std::vector<target::Mapping>& mappings) {
  nlohmann::ordered_json json;
  json["address"] = target.address().to_string();
  json["nqn"] = target.subsystem().nqn;
  json["uuid"] = nvme::to_string(target.subsystem().uuid);
  json["block_bytes"] = target::kBlockBytes;
  json["objects"] = nlohmann::ordered_json::array();
  for (const target::Mapping& mapping : mappings) {
    json["objects"].push_back({{"path", mapping.object->path()},
                               {"bytes", mapping.object->size()},
                               {"first_block", mapping.first_block},
                               {"blocks", mapping.object->blocks()}});
  }
  return json;
}

void show(const target::Target& target, const std::vector<target::Mapping>& mappings, const SecretFiles& secrets) {
  const os::SocketAddress& address = target.address();
  fmt::print("{}  at {}, namespace 1, UUID {}\n", target.subsystem().nqn, address.to_string(),
             nvme::to_string(target.subsystem().uuid));
  fmt::print("{:>16} {:>12}  object\n", "first LBA", "LBAs (4 KiB)");
  for (const target::Mapping& mapping : mappings) {
    fmt::print("{:>16} {:>12}  {}  ({})\n", mapping.first_block, mapping.object->blocks(), mapping.object->path(),
               format_bytes(mapping.object->size()));
  }
  fmt::print("nvme connect -t tcp -a {} -s {} -n {}{}{}\n", address.host(), address.port(), target.subsystem().nqn,
             secrets.hosts.empty() ? "" : " --dhchap-secret SECRET",
             secrets.controllers.empty() ? "" : " --dhchap-ctrl-secret SECRET");
}

// What was done until the end, as a second JSON object.
nlohmann::ordered_json served(const target::Target& target) {
  nlohmann::ordered_json sums = nlohmann::ordered_json::object();
  const auto add = [&sums](const char* name, std::uint64_t value) {
    sums[name] = sums.value(name, std::uint64_t{0}) + value;
  };
  for (const target::ShardCounters* shard : target.counters()) {
    add("connections", shard->connections);
    add("connections_refused", shard->connections_refused);
    add("faults", shard->faults);
    add("refused", shard->refused);
    add("commands", shard->commands);
    add("reads", shard->reads);
    add("bytes", shard->bytes);
    add("digests_combined", shard->digests_combined);
    add("blocks_verified", shard->blocks_verified);
    add("blocks_corrupt", shard->blocks_corrupt);
    add("sends", shard->sends);
    add("sends_zero_copy", shard->sends_zero_copy);
    add("sends_copied", shard->sends_copied);
  }
  return {{"served", sums}};
}

int run(const Settings& settings) {
  const Result<os::SocketAddress> address = os::parse_socket_address(settings.listen);
  if (!address.ok()) return fail(settings.common, address.error());
  target::Admission admission{.hosts = settings.hosts, .any_from_loopback = settings.hosts.empty()};
  if (const Status added = add_secrets(settings.secrets, admission); !added.ok())
    return fail(settings.common, added.error());
  if (settings.hosts.empty() && settings.secrets.hosts.empty() && !address->loopback()) {
    return fail(
        settings.common,
        Error(ErrorCode::invalid_argument, "every machine that reaches " + settings.listen + " could read the objects")
            .with_hint("Name the hosts that may, each with --allow NQN (a host's is in /etc/nvme/hostnqn), or demand "
                       "proof with --dhchap-secret-file"));
  }
  hold_signals();
  Result<std::unique_ptr<target::Target>> target = target::Target::start({.listen = *address,
                                                                          .nqn = settings.nqn,
                                                                          .state_path = settings.state,
                                                                          .admission = admission,
                                                                          .limits = {},
                                                                          .shards = settings.shards,
                                                                          .shard = {}});
  if (!target.ok()) return fail(settings.common, target.error());
  std::vector<target::Mapping> mappings;
  for (const std::string& path : settings.objects) {
    Result<target::Mapping> mapping = (*target)->add(path);
    if (!mapping.ok()) return fail(settings.common, mapping.error());
    mappings.push_back(*std::move(mapping));
  }
  if (settings.common.json) {
    print_json(to_json(**target, mappings));
  } else if (!settings.common.quiet) {
    show(**target, mappings, settings.secrets);
  }
  std::fflush(stdout);
  wait_for_signal();
  if (settings.common.json) print_json(served(**target));
  return kDone;
}

}  // namespace

void add_target(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command = app.add_subcommand(
      "target", "Serve files read-only over NVMe/TCP, to Linux hosts (nvme connect) and to this program");
  command->add_option("--listen", settings->listen, "Address and port; only this machine's hosts without --allow")
      ->capture_default_str();
  command->add_option("--object", settings->objects, "A file to serve; may be given several times")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--allow", settings->hosts,
                   "The NQN of a host that may connect, and then no other; may be given several times")
      ->type_name("NQN");
  command
      ->add_option("--dhchap-secret-file", settings->secrets.hosts,
                   "A file with the secret by which this host, or every other, has to prove itself (nvme "
                   "gen-dhchap-key); may be given several times")
      ->type_name("[HOSTNQN=]FILE");
  command
      ->add_option("--dhchap-ctrl-secret-file", settings->secrets.controllers,
                   "A file with the secret by which this target proves itself to this host, or to every other")
      ->type_name("[HOSTNQN=]FILE");
  command->add_option("--nqn", settings->nqn, "The subsystem's NQN; without it one that is made once")
      ->type_name("NQN");
  command
      ->add_option("--state", settings->state,
                   "Keep identity and addresses in this file, so that hosts find them again after a restart")
      ->type_name("FILE");
  command->add_option("--shards", settings->shards, "Threads that serve connections")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str();
  add_common(*command, settings->common);
  set_examples(
      *command,
      "  infercluster target --object model.safetensors\n"
      "  infercluster target --listen 10.0.0.5:4420 --allow nqn.2014-08.org.nvmexpress:uuid:... --object a --object b "
      "--state /var/lib/infercluster/target\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
