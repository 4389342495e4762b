// SPDX-License-Identifier: Apache-2.0
#include "cli/load_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <type_traits>

#include "base/units.h"
#include "cli/output.h"
#include "load/report_fields.h"

namespace infercluster::cli {
namespace {

struct Group {
  const load::FileReport* first = nullptr;
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;
};

std::string counted(std::uint64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string files_text(const std::vector<load::FileReport>& files) {
  std::vector<Group> groups;
  for (const load::FileReport& file : files) {
    const auto alike = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.first->mode == file.mode && group.first->verification == file.verification;
    });
    Group& group = alike == groups.end() ? groups.emplace_back(Group{&file, 0, 0}) : *alike;
    ++group.files;
    group.bytes += file.bytes;
  }
  Table table({}, {1, 2});
  for (const Group& group : groups) {
    table.add({"  " + group.first->mode, counted(group.files, "file"), format_bytes(group.bytes), group.first->reason,
               group.first->verification});
  }
  return table.text();
}

// Of whatever visit_fields() knows.
template <typename Fields>
nlohmann::ordered_json document(const Fields& fields) {
  nlohmann::ordered_json json;
  load::visit_fields(fields, [&json]<typename Value>(const char* name, const Value& value) {
    if constexpr (std::is_same_v<Value, load::Waited>) {
      json[name] = document(value);
    } else if constexpr (std::is_same_v<Value, std::vector<load::FileReport>>) {
      json[name] = nlohmann::ordered_json::array();
      for (const load::FileReport& file : value) json[name].push_back(document(file));
    } else {
      json[name] = value;
    }
  });
  return json;
}

}  // namespace

nlohmann::ordered_json to_json(const load::Report& report) {
  return document(report);
}

std::string to_text(const load::Report& report) {
  std::string text = fmt::format(
      "{} in {}, {} in {}: {} by {}\n", counted(report.tensors, "tensor"), counted(report.files.size(), "file"),
      format_bytes(report.bytes), format_seconds(report.seconds),
      report.on_double ? std::string("no rate, on a double")
                       : coloured(Colour::bold, format_rate(report.gib_per_s() * static_cast<double>(kGiB))),
      report.backend);
  text += files_text(report.files);
  text += fmt::format("  waited for storage {:.2f} s, memory {:.2f} s, verify {:.2f} s, other {:.2f} s\n",
                      report.waited.storage, report.waited.memory, report.waited.verify, report.waited.other);
  text += fmt::format("  memory at its peak {}, {} of it beyond the tensors; moved {}; read {} in {}\n",
                      format_bytes(report.peak_host_bytes), format_bytes(report.working_bytes),
                      format_bytes(report.moved_bytes), format_bytes(report.bytes_read),
                      counted(report.requests, "request"));
  if (report.page_cache_fill_bytes > 0) {
    text += fmt::format("  filling the page cache behind the load: {}\n", format_bytes(report.page_cache_fill_bytes));
  }
  for (const std::string& notice : report.notices)
    text += fmt::format("  {}: {}\n", coloured(Colour::yellow, "notice"), notice);
  return text;
}

}  // namespace infercluster::cli
