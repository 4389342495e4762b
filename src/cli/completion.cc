// SPDX-License-Identifier: Apache-2.0
// infercluster completion
#include "cli/completion.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <vector>

namespace infercluster::cli {
namespace {

struct Choice {
  std::string name;  // "--backend"
  std::string description;
  bool takes_value = false;
  std::vector<std::string> values;  // where only these are accepted
};

struct Command {
  std::string name;  // of one within a group: "checkpoint ls"
  std::string description;
  std::vector<Choice> choices;
  bool takes_path = false;
  std::vector<std::string> words;  // what the positional accepts, where only these are; of a group its commands
  bool is_group = false;

  // The group's name, or nothing; and its own.
  [[nodiscard]] std::string group() const {
    const std::size_t space = name.find(' ');
    return space == std::string::npos ? std::string() : name.substr(0, space);
  }
  [[nodiscard]] std::string last_name() const { return name.substr(name.rfind(' ') + 1); }
};

// CLI11 shows a set of accepted words as "{a,b,c}" within the type.
std::vector<std::string> accepted(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  std::vector<std::string> words;
  if (open == std::string::npos || close == std::string::npos) return words;
  for (const std::string& word : CLI::detail::split(type.substr(open + 1, close - open - 1), ','))
    words.push_back(word);
  return words;
}

Command described(const CLI::App& app) {
  Command command{app.get_name(), app.get_description(), {}, false, {}, false};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      command.words = accepted(*option);
      command.takes_path = command.words.empty();
      continue;
    }
    for (const std::string& name : option->get_lnames()) {
      command.choices.push_back(
          {"--" + name, option->get_description(), option->get_items_expected_min() > 0, accepted(*option)});
    }
    for (const std::string& name : option->get_snames()) {
      command.choices.push_back({"-" + name, option->get_description(), option->get_items_expected_min() > 0, {}});
    }
  }
  return command;
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Groups before the commands within them.
std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> commands;
  for (const CLI::App* top : subcommands_of(app)) {
    Command command = described(*top);
    std::vector<Command> within;
    for (const CLI::App* inner : subcommands_of(*top)) {
      within.push_back(described(*inner));
      command.is_group = true;
      command.words.push_back(within.back().name);
      within.back().name = command.name + " " + within.back().name;
    }
    commands.push_back(std::move(command));
    for (Command& inner : within) commands.push_back(std::move(inner));
  }
  return commands;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string names_of(const Command& command) {
  std::vector<std::string> names;
  for (const Choice& choice : command.choices) names.push_back(choice.name);
  return joined(names);
}

std::string top_names_of(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (command.group().empty()) names.push_back(command.name);
  }
  return joined(names);
}

// For a pattern of a shell's case.
std::string groups_of(const std::vector<Command>& commands) {
  std::string groups;
  for (const Command& command : commands) {
    if (command.is_group) groups += (groups.empty() ? "" : "|") + command.name;
  }
  return groups;
}

std::string bash_script(const Command& top, const std::vector<Command>& commands) {
  std::string script = fmt::format(R"(# bash completion for infercluster: source <(infercluster completion bash)
_infercluster() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in -*) continue ;; esac
    command=${{command:+$command }}$word
    case $command in {}) ;; *) break ;; esac
  done
  COMPREPLY=()
  case $command in
  '')
    COMPREPLY=($(compgen -W '{} {}' -- "$current"))
    return ;;
)",
                                   groups_of(commands), top_names_of(commands), names_of(top));
  for (const Command& command : commands) {
    script += fmt::format("  '{}')\n    case $previous in\n", command.name);
    for (const Choice& choice : command.choices) {
      if (!choice.takes_value) continue;
      if (choice.values.empty()) {
        script += fmt::format("    {}) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n", choice.name);
      } else {
        script += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n", choice.name,
                              joined(choice.values));
      }
    }
    script += fmt::format(R"(    esac
    if [[ $current == -* ]]; then
      COMPREPLY=($(compgen -W '{}' -- "$current"))
    else
      COMPREPLY=($(compgen {} -- "$current"))
    fi ;;
)",
                          names_of(command), command.words.empty() ? "-f" : "-W '" + joined(command.words) + "'");
  }
  return script + "  esac\n}\ncomplete -o filenames -F _infercluster infercluster\n";
}

// For single quotes in zsh's and fish's descriptions.
std::string quoted(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\'' || c == '\\') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string zsh_description(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\'') continue;
    if (c == '[' || c == ']' || c == ':') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string zsh_script(const std::vector<Command>& commands) {
  std::string script = "#compdef infercluster\n_infercluster() {\n  local -a commands\n  commands=(\n";
  for (const Command& command : commands) {
    if (command.group().empty())
      script += fmt::format("    '{}:{}'\n", command.name, zsh_description(command.description));
  }
  script +=
      "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n  local command=$words[2]\n  shift "
      "words; (( CURRENT-- ))\n";
  script += fmt::format(
      "  case $command in {}) if (( CURRENT > 2 )); then command=\"$command $words[2]\"; shift words; (( CURRENT-- )); "
      "fi ;; esac\n",
      groups_of(commands));
  script += "  case $command in\n";
  for (const Command& command : commands) {
    script += fmt::format("  '{}')\n    _arguments", command.name);
    for (const Choice& choice : command.choices) {
      std::string value;
      if (choice.takes_value)
        value = choice.values.empty() ? ":value:_files" : ":value:(" + joined(choice.values) + ")";
      script += fmt::format(" \\\n      '{}[{}]{}'", choice.name, zsh_description(choice.description), value);
    }
    if (command.takes_path) script += " \\\n      '*:path:_files'";
    if (!command.words.empty()) script += fmt::format(" \\\n      '*:word:({})'", joined(command.words));
    script += " ;;\n";
  }
  return script +
         "  esac\n}\nif [[ $funcstack[1] == _infercluster ]]; then _infercluster \"$@\"; else compdef _infercluster "
         "infercluster; fi\n";
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string script = "# fish completion for infercluster: infercluster completion fish | source\n";
  std::string not_in_groups;  // their commands bear names that others have too
  for (const Command& command : commands) {
    if (command.is_group) not_in_groups += "; and not __fish_seen_subcommand_from " + command.name;
  }
  std::string within;  // the commands of the group that came last: they follow it
  for (const Command& command : commands) {
    const std::string group = command.group();
    if (command.is_group) within = joined(command.words);
    std::string offered = "__fish_use_subcommand";
    std::string chosen = "__fish_seen_subcommand_from " + command.last_name();
    if (!group.empty()) {
      offered = "__fish_seen_subcommand_from " + group + "; and not __fish_seen_subcommand_from " + within;
      chosen = "__fish_seen_subcommand_from " + group + "; and " + chosen;
    } else if (!command.is_group) {
      chosen += not_in_groups;
    }
    script += fmt::format("complete -c infercluster -n '{}' -f -a {} -d '{}'\n", offered, command.last_name(),
                          quoted(command.description));
    for (const Choice& choice : command.choices) {
      const bool is_long = choice.name.starts_with("--");
      script += fmt::format("complete -c infercluster -n '{}' -{} {} -d '{}'", chosen, is_long ? "l" : "s",
                            choice.name.substr(is_long ? 2 : 1), quoted(choice.description));
      if (!choice.values.empty())
        script += fmt::format(" -x -a '{}'", joined(choice.values));
      else if (choice.takes_value)
        script += " -r";
      script += "\n";
    }
    if (!command.words.empty() && !command.is_group)
      script += fmt::format("complete -c infercluster -n '{}' -f -a '{}'\n", chosen, joined(command.words));
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  const std::vector<Command> commands = commands_of(app);
  if (shell == "zsh") return zsh_script(commands);
  if (shell == "fish") return fish_script(commands);
  return bash_script(described(app), commands);
}

void add_completion(CLI::App& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* const command = app.add_subcommand("completion", "Print the completion script of a shell");
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  set_examples(*command,
               "  source <(infercluster completion bash)\n"
               "  infercluster completion fish > ~/.config/fish/completions/infercluster.fish\n");
  command->callback([shell, &app, &action] {
    action = [shell, &app] {
      std::fputs(completion_script(app, *shell).c_str(), stdout);
      return kDone;
    };
  });
}

}  // namespace infercluster::cli
