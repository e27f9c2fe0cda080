"""What `mkdocs` is told beside `mkdocs.yml`: which version this is, and files outside of docs.

Pages link to examples, results of benchmarks and the chart. On the site they are pages below
`repository/`, so that a reader needs nothing else, and every link is checked.
"""

import os
import posixpath
import re
import subprocess
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
DEVELOPMENT: Final = "dev"
"""The version under which `mike` deploys the main branch."""
OUTSIDE: Final = "repository"
SHOWN: Final = (
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md",
    "charts/batchedapi/dashboards", "charts/batchedapi/rules", "charts/batchedapi/values.yaml",
    "examples", "tests/bench/README.md", "tests/bench/autoscaling/README.md", "tests/bench/results",
)  # fmt: skip
"""Files and folders of the repository that pages link to."""
LISTED: Final = {f"{OUTSIDE}/examples": "Examples"}
"""Folders of the site that get a list of their files, with its title."""
NOT_SEARCHED: Final = ("decisions/0", f"{OUTSIDE}/tests/", f"{OUTSIDE}/CHANGELOG", "promises")
"""Pages that explain nothing to a user: their words would hide the pages that do."""
BOOST: Final = {"guides/": 4, "tutorials/": 2, "install": 2}
"""How much more a page counts in the search than others, by the beginning of its name."""
LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)")
FENCE: Final = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Which release the pages are of: that which `mike` deploys, else the development's."""
    deployed = os.environ.get("MIKE_DOCS_VERSION")
    config.extra["reads"] = deployed or DEVELOPMENT
    config.extra["development"] = config.extra["reads"] == DEVELOPMENT
    if deployed:  # the selector asks for versions.json, which is only there beside other versions
        config.extra["version"] = {"provider": "mike", "default": "latest", "alias": True}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what of the repository is shown; a folder without a README gets a list of its files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SHOWN],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    shown = sorted(name for name in set(listed) if name and (ROOT / name).is_file())
    for name in shown:
        files.append(File.generated(config, f"{OUTSIDE}/{name}", abs_src_path=str(ROOT / name)))
    known = {file.src_uri for file in files}
    folders = {posixpath.dirname(f"{OUTSIDE}/{name}") for name in shown} | set(LISTED)
    for folder in sorted(folders):
        if not known & {f"{folder}/README.md", f"{folder}/index.md"}:
            inside = sorted(name for name in known if posixpath.dirname(name) == folder)
            lines = [
                f"- [{posixpath.basename(name)}]({posixpath.basename(name)})" for name in inside
            ]
            title = LISTED.get(folder, folder.removeprefix(f"{OUTSIDE}/"))
            content = "\n".join([f"# {title}", "", *lines, ""])
            files.append(File.generated(config, f"{folder}/README.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between docs and the rest of the repository, and what the search makes of a page."""
    del config
    source = page.file.src_uri
    boost = next((factor for name, factor in BOOST.items() if source.startswith(name)), 1)
    page.meta["search"] = {"exclude": source.startswith(NOT_SEARCHED), "boost": boost}

    def on_site(link: re.Match[str]) -> str:
        return relative(source, link[1], files)

    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(on_site, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(on_site, markdown[at:])])


def relative(source: str, link: str, files: Files) -> str:
    """The link of a page, which is right in the repository, as it has to be on the site.

    Args:
        source: The page, relative to docs: `guides/models.md`, `repository/README.md`.
        link: As written there.
        files: All that the site has.
    """
    inside, _, rest = source.partition("/")
    here = rest if inside == OUTSIDE else f"docs/{source}"
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    there = target.removeprefix("docs/") if target.startswith("docs/") else f"{OUTSIDE}/{target}"
    if files.get_file_from_path(f"{there}/README.md"):
        there += "/README.md"
    elif files.get_file_from_path(f"{there}/index.md"):
        there += "/index.md"
    return posixpath.relpath(there, posixpath.dirname(source) or ".")
