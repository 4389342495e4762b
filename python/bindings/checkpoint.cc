// SPDX-License-Identifier: Apache-2.0
// Checkpoints. Every call that may wait gives up the GIL; the package calls those from a thread of its own, so that
// Ctrl-C gets through.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "exchange.h"
#include "gil.h"
#include "infercluster/checkpoint.h"
#include "restore.h"
#include "running.h"
#include "tensors.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

using checkpoint::Checkpoint;

// Keeps the ranks that its checkpointer talks to.
struct Owner {
  std::shared_ptr<exchange::Exchange> ranks;  // null: this process alone
  std::unique_ptr<checkpoint::Checkpointer> checkpointer;
};
using Checkpointer = Running<Owner>;
using Saved = std::shared_ptr<checkpoint::Save>;

using Fast = std::pair<nb::bytes, std::uint64_t>;  // path, and how many checkpoints stay there

Checkpointer open(const nb::bytes& root, const std::optional<Ranks>& ranks, std::uint64_t keep,
                  std::uint64_t keep_every, std::uint64_t arena_bytes, std::uint64_t max_write_rate,
                  double call_seconds, double write_seconds, const std::optional<Fast>& fast) {
  const std::string path = string_of(root);
  auto owner = std::make_unique<Owner>();
  checkpoint::Options options;
  options.retention = {.keep = keep, .keep_every = keep_every};
  options.arena_bytes = arena_bytes;
  options.max_write_rate = max_write_rate;
  options.stock_dcp = checkpoint::StockDcp::counted;
  options.call_deadline = in_nanoseconds(call_seconds);
  options.write_deadline = in_nanoseconds(write_seconds);
  if (fast) options.fast = checkpoint::FastTier{.path = string_of(fast->first), .retention = {.keep = fast->second}};
  if (ranks) {
    owner->ranks = ranks->exchange;
    options.exchange = owner->ranks.get();
  }
  owner->checkpointer = unwrap(without_gil([&] { return checkpoint::Checkpointer::open(path, options); }));
  return Checkpointer(std::move(owner));
}

Saved save(const Checkpointer& self, std::uint64_t step, const Tensors& tensors, manifest::Metadata metadata,
           bool replace, std::string_view until) {
  const auto owner = self.get();
  checkpoint::SaveOptions options;
  if (until == "durable") options.wait = checkpoint::Wait::until_durable;
  if (until == "queued") options.wait = checkpoint::Wait::until_queued;
  options.exists = replace ? checkpoint::Exists::replace : checkpoint::Exists::error;
  // Const for everybody, which Python cannot say.
  return std::const_pointer_cast<checkpoint::Save>(unwrap(
      without_gil([&] { return owner->checkpointer->save(step, tensors.state(std::move(metadata)), options); })));
}

// `failed`: what this rank met with, or None.
void conclude(const Checkpointer& self, const std::optional<Described>& failed) {
  const auto owner = self.get();
  Status own;
  if (failed) own = error_of(*failed);
  unwrap(without_gil([&] { return owner->checkpointer->conclude(own); }));
}

nb::dict report_of(const checkpoint::Save& save) {
  const checkpoint::SaveReport report = save.report();
  nb::dict result;
  result["step"] = report.step;
  result["epoch"] = report.epoch;
  result["bytes"] = report.bytes;
  result["referred"] = report.referred;
  result["bytes_referred"] = report.bytes_referred;
  result["bytes_copied"] = report.bytes_copied;
  result["link_refusal"] = report.link_refusal;
  result["stall_seconds"] = report.stall_seconds;
  result["arena_wait_seconds"] = report.arena_wait_seconds;
  result["agree_seconds"] = report.agree_seconds;
  result["copy_seconds"] = report.copy_seconds;
  result["write_seconds"] = report.write_seconds;
  result["durable_seconds"] = report.durable_seconds;
  result["throttled_seconds"] = report.throttled_seconds;
  result["lowest_rate"] = report.lowest_rate;
  result["requests_cut"] = report.requests_cut;
  result["direct"] = report.direct;
  result["layout"] = report.layout;
  result["plan_reused"] = report.plan_reused;
  result["waves"] = report.waves;
  nb::dict tiers;
  if (report.fast) {
    const bool left_out = report.fast == checkpoint::TierStatus::left_out;
    tiers["fast"] = as_text(name_of(left_out ? *report.fast : save.status_on(checkpoint::Tier::fast)));
  }
  tiers["root"] = as_text(name_of(save.status_on(checkpoint::Tier::root)));
  result["tiers"] = tiers;
  result["notice"] = report.notice;
  result["fast_seconds"] = report.fast_seconds;
  result["tier_wait_seconds"] = report.tier_wait_seconds;
  result["drain_seconds"] = report.drain_seconds;
  result["bytes_drained"] = report.bytes_drained;
  return result;
}

checkpoint::Tier tier_of(bool fast) {
  return fast ? checkpoint::Tier::fast : checkpoint::Tier::root;
}

void bind_save(nb::module_& module) {
  nb::class_<checkpoint::Save>(module, "Save")
      .def_prop_ro("status", [](const checkpoint::Save& self) { return as_text(name_of(self.status())); })
      .def("wait_for",
           [](const checkpoint::Save& self, double seconds, bool fast) {
             return without_gil([&] { return self.wait_for(in_nanoseconds(seconds), tier_of(fast)); });
           })
      .def("wait_until_staged",
           [](const checkpoint::Save& self) { unwrap(without_gil([&] { return self.wait_until_staged(); })); })
      .def("raise_error", [](const checkpoint::Save& self,
                             bool fast) { unwrap(without_gil([&] { return self.wait(tier_of(fast)); })); })
      .def("report", &report_of);
}

nb::dict restore_together(const Checkpointer& self, const Checkpoint& checkpoint, const Tensors& tensors) {
  const auto owner = self.get();
  const std::vector<checkpoint::Target> targets = tensors.targets();
  return load_report_of(unwrap(
      without_gil([&] { return owner->checkpointer->restore(checkpoint, targets, tensors.restore_options()); })));
}

void bind_checkpointer(nb::module_& module) {
  nb::class_<checkpoint::LoadPlace>(module, "Place")
      .def_prop_ro("step", [](const checkpoint::LoadPlace& self) { return self.step; })
      .def_prop_ro("is_fast",
                   [](const checkpoint::LoadPlace& self) { return self.kind == checkpoint::LoadPlace::Kind::fast; })
      .def_prop_ro("is_at_root", [](const checkpoint::LoadPlace& self) { return self.is_at_root; })
      .def_prop_ro("notice", [](const checkpoint::LoadPlace& self) { return as_text(self.notice); });
  nb::class_<Checkpointer>(module, "Checkpointer")
      .def("save", &save, nb::arg("step"), nb::arg("tensors"), nb::arg("metadata"), nb::arg("replace"),
           nb::arg("until"))
      .def("conclude", &conclude, nb::arg("failed").none())
      .def("restore", &restore_together, nb::arg("checkpoint"), nb::arg("tensors"))
      .def("cancel",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             without_gil([&] { owner->checkpointer->cancel(); });
           })
      .def("wait_idle",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             without_gil([&] { owner->checkpointer->wait_idle(); });
           })
      .def("steps",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             return unwrap(without_gil([&] { return owner->checkpointer->steps(); }));
           })
      .def("latest",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             return unwrap(without_gil([&] { return owner->checkpointer->latest(); }));
           })
      .def("agree_on_latest",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             return unwrap(without_gil([&] { return owner->checkpointer->agree_on_latest(); }));
           })
      .def(
          "choose",
          [](const Checkpointer& self, std::optional<std::uint64_t> step) {
            const auto owner = self.get();
            return unwrap(without_gil([&] { return owner->checkpointer->choose(step); }));
          },
          nb::arg("step").none())
      .def("open_place",
           [](const Checkpointer& self, const checkpoint::LoadPlace& place) -> std::shared_ptr<Checkpoint> {
             const auto owner = self.get();
             return unwrap(without_gil([&] { return owner->checkpointer->open_place(place); }));
           })
      .def("prepare",
           [](const Checkpointer& self, std::uint64_t bytes) {
             const auto owner = self.get();
             unwrap(without_gil([&] { return owner->checkpointer->prepare(bytes); }));
           })
      .def("close", &Checkpointer::close);
  module.def("open_checkpointer", &open, nb::arg("root"), nb::arg("ranks").none(), nb::arg("keep"),
             nb::arg("keep_every"), nb::arg("arena_bytes"), nb::arg("max_write_rate"), nb::arg("call_seconds"),
             nb::arg("write_seconds"), nb::arg("fast").none());
}

using PartSaver = Running<checkpoint::PartSaver>;
using Ticket = std::pair<std::uint64_t, std::string>;                // epoch, id of the save
using Part = std::tuple<std::string, std::uint64_t, std::uint32_t>;  // an index: name, bytes, CRC32C

checkpoint::SaveTicket ticket_of(const Ticket& ticket) {
  return {ticket.first, ticket.second};
}

PartSaver make_part_saver(std::uint64_t buffer_bytes, double visible_seconds) {
  checkpoint::PartSaver::Options options;
  options.buffer_bytes = buffer_bytes;
  options.visible_deadline = in_nanoseconds(visible_seconds);
  return PartSaver(std::make_unique<checkpoint::PartSaver>(options));
}

Ticket begin_part(const PartSaver& self, const nb::bytes& directory, bool replace) {
  const auto saver = self.get();
  const std::string path = string_of(directory);
  const auto exists = replace ? checkpoint::Exists::replace : checkpoint::Exists::error;
  const checkpoint::SaveTicket ticket = unwrap(without_gil([&] { return saver->begin(path, exists); }));
  return {ticket.epoch, ticket.save_id};
}

std::tuple<Part, std::uint64_t, bool> write_part(const PartSaver& self, const nb::bytes& directory,
                                                 const Ticket& ticket, std::uint64_t node, std::uint64_t world,
                                                 const Tensors& tensors, manifest::Metadata metadata,
                                                 std::uint64_t max_write_rate) {
  const auto saver = self.get();
  const std::string path = string_of(directory);
  const checkpoint::SavedPart part = unwrap(without_gil([&] {
    return saver->write(path, ticket_of(ticket), node, world, tensors.state(std::move(metadata)), max_write_rate);
  }));
  return {{part.index.name, part.index.bytes, part.index.crc32c}, part.bytes, part.report.direct};
}

void commit_parts(const PartSaver& self, const nb::bytes& directory, const Ticket& ticket, std::uint64_t world,
                  const std::vector<Part>& parts, const Tensors& held) {
  const auto saver = self.get();
  const std::string path = string_of(directory);
  std::vector<manifest::IndexReference> indexes;
  for (const auto& [name, bytes, crc32c] : parts) indexes.push_back({name, bytes, crc32c});
  unwrap(without_gil([&] { return saver->commit(path, ticket_of(ticket), world, std::move(indexes), held.pieces()); }));
}

void discard_part(const PartSaver& self, const nb::bytes& directory, const Ticket& ticket) {
  const auto saver = self.get();
  const std::string path = string_of(directory);
  unwrap(without_gil([&] { return saver->discard(path, ticket_of(ticket)); }));
}

void bind_part_saver(nb::module_& module) {
  nb::class_<PartSaver>(module, "PartSaver")
      .def("begin", &begin_part, nb::arg("directory"), nb::arg("replace"))
      .def("write", &write_part, nb::arg("directory"), nb::arg("ticket"), nb::arg("node"), nb::arg("world"),
           nb::arg("tensors"), nb::arg("metadata"), nb::arg("max_write_rate") = 0)
      .def("commit", &commit_parts, nb::arg("directory"), nb::arg("ticket"), nb::arg("world"), nb::arg("parts"),
           nb::arg("held"))
      .def("discard", &discard_part, nb::arg("directory"), nb::arg("ticket"));
  module.def("part_saver", &make_part_saver, nb::arg("buffer_bytes"), nb::arg("visible_seconds"));
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  bind_tensors(module);
  nb::class_<checkpoint::Mesh>(module, "Mesh");
  module.def(
      "mesh",
      [](Numbers shape, Numbers ranks) {
        return std::make_shared<checkpoint::Mesh>(unwrap(checkpoint::Mesh::of(std::move(shape), std::move(ranks))));
      },
      nb::arg("shape"), nb::arg("ranks"));
  bind_save(module);
  bind_checkpointer(module);
  bind_restore(module);
  bind_part_saver(module);
}

}  // namespace infercluster::python
