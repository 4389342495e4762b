// SPDX-License-Identifier: Apache-2.0
// infercluster load
#include <chrono>
#include <cstdio>
#include <memory>

#include "cli/common.h"
#include "cli/load_options.h"
#include "cli/load_report.h"
#include "cli/output.h"
#include "cli/signals.h"

namespace infercluster::cli {
namespace {

constexpr std::chrono::milliseconds kTick{100};

struct Settings : LoadSettings {
  Common common;
};

Result<std::unique_ptr<load::Job>> start(const Settings& settings) {
  IC_TRY(const load::Options options, to_options(settings));
  IC_TRY(auto repository, open_source(settings.source));
  return start_load(std::move(repository), options);
}

int run(const Settings& settings) {
  ProgressLine progress(settings.common, "load");
  auto started = start(settings);
  if (!started.ok()) return fail(settings.common, started.error());
  load::Job& job = **started;
  while (!job.wait_for(kTick)) {
    progress.update(job.progress());
    if (caught_signal() != 0) job.cancel();
  }
  const auto loaded = job.finish();
  progress.finish();
  if (!loaded.ok()) return fail(settings.common, loaded.error());
  if (settings.common.json) {
    print_json(to_json(loaded->report));
  } else if (!settings.common.quiet) {
    std::fputs(("loaded " + to_text(loaded->report)).c_str(), stdout);
  }
  std::fflush(stdout);
  // What was promised to the next start: it would end with this process. A signal ends the wait, and is no failure.
  while (caught_signal() == 0 && !job.wait_for_page_cache(kTick)) {
  }
  return kDone;
}

}  // namespace

void add_load(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command = app.add_subcommand("load", "Load weights into memory, and say how fast and why");
  add_load_options(*command, *settings);
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster load ./model --verify\n"
               "  infercluster load org/name --revision main --json\n"
               "  infercluster load ./model --names 'model.layers.0.*' lm_head.weight\n"
               "  infercluster load ./model --shard 0:3:8                # rank 3 of 8, cut in dimension 0\n"
               "  infercluster load ./model --slice 'embed.weight=0:1000'\n"
               "  infercluster load model.safetensors --backend threads --direct never --page-cache bypass\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
