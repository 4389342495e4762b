// SPDX-License-Identifier: Apache-2.0
#include "initiator/url.h"

#include <charconv>

#include "nvme/fabrics.h"

namespace infercluster::initiator {
namespace {

constexpr std::string_view kScheme = "nvme-tcp://";
constexpr std::string_view kNsid = "nsid=";

Error not_a_url(std::string_view text, std::string_view why) {
  return Error(ErrorCode::invalid_argument,
               "\"" + std::string(text.substr(0, 300)) + "\" is no URL of a namespace: " + std::string(why))
      .with_hint("Write nvme-tcp://10.0.0.5:4420/NQN?nsid=1");
}

}  // namespace

std::string Url::to_string() const {
  std::string text = std::string(kScheme) + address.to_string();
  if (!nqn.empty()) text += "/" + nqn + "?" + std::string(kNsid) + std::to_string(nsid);
  return text;
}

Result<Url> parse_url(std::string_view text) {
  if (!text.starts_with(kScheme)) return not_a_url(text, "it does not begin with " + std::string(kScheme));
  std::string_view rest = text.substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  std::string place(rest.substr(0, slash));
  rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);

  Url url;
  const std::size_t question = rest.find('?');
  url.nqn = rest.substr(0, question);
  if (question != std::string_view::npos) {
    const std::string_view query = rest.substr(question + 1);
    if (!query.starts_with(kNsid)) return not_a_url(text, "after the question mark only nsid=N may stand");
    const std::string_view digits = query.substr(kNsid.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), url.nsid);
    if (error != std::errc{} || end != digits.data() + digits.size() || url.nsid == 0 || url.nsid == UINT32_MAX) {
      return not_a_url(text, "its namespace identifier is none");
    }
  }
  if (!url.nqn.empty() && !nvme::check_nqn(url.nqn).ok()) return not_a_url(text, "its NQN is none");
  const bool bracketed = place.ends_with(']');
  if (bracketed || place.find(':') == std::string::npos) place += url.nqn.empty() ? ":8009" : ":4420";
  Result<os::SocketAddress> address = os::parse_socket_address(place);
  if (!address.ok()) return not_a_url(text, "its address is none");
  url.address = *address;
  return url;
}

}  // namespace infercluster::initiator
