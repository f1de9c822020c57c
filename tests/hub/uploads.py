"""The half of the local hub that takes files: repositories, branches, large files, commits."""

import base64
import hashlib
import json
import re
from typing import Any

from tests.hub.content import Blob, Repo, make_blob

_WRITE = re.compile(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/(.+)")
_LFS_BATCH = re.compile(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch")
_LFS_OBJECT = re.compile(r"/lfs/([0-9a-f]{64})")
LFS_SUFFIX = ".safetensors"


class UploadRoutes:
    """Answers what a client sends; mixed into the handler of the server."""

    server: Any
    headers: Any
    body: bytes
    command: str

    def answer_write(self, path: str) -> bool:
        """Answer a request that writes; return whether it was one."""
        if self.command == "PUT" and (large := _LFS_OBJECT.fullmatch(path)):
            self._take_object(large[1])
        elif path == "/api/validate-yaml":
            self._send_json({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self._create_repo(json.loads(self.body))
        elif batch := _LFS_BATCH.fullmatch(path):
            self._lfs_batch(batch[1])
        elif write := _WRITE.fullmatch(path):
            repo = self.server.hub.repos.get(("model", write[1]))
            if repo is None:
                self._refuse(404, "RepoNotFound", "Repository not found")
            elif write[2] == "preupload":
                self._preupload(repo, write[3])
            elif write[2] == "branch":
                repo.refs[write[3]] = repo.refs["main"]
                self._send_json({})
            else:
                self._commit(write[1], repo, write[3])
        else:
            return False
        return True

    def _create_repo(self, wanted: dict[str, Any]) -> None:
        name = "/".join(filter(None, (wanted.get("organization"), wanted["name"])))
        hub = self.server.hub
        if ("model", name) in hub.repos:
            return self._refuse(409, "", "You already created this repository")
        is_private = wanted.get("visibility") == "private" or wanted.get("private") is True
        hub.add_repo(name, "model", {".gitattributes": b"*.safetensors\n"}, private=is_private)
        return self._send_json({"url": f"http://{self.headers['Host']}/{name}", "name": name})

    def _preupload(self, repo: Repo, branch: str) -> None:
        files = repo.commits[repo.refs[branch]]
        modes = []
        for file in json.loads(self.body)["files"]:
            name = file["path"]
            there = files.get(name)
            modes.append({
                "path": name,
                "uploadMode": "lfs" if name.endswith(LFS_SUFFIX) else "regular",
                "shouldIgnore": False,
                "oid": there and (there.sha256 if there.is_lfs else there.git_sha1),
            })  # fmt: skip
        self._send_json({"files": modes})

    def _lfs_batch(self, repo: str) -> None:
        """Ask for the objects that aren't here yet."""
        answers = []
        for wanted in json.loads(self.body)["objects"]:
            answer = dict(wanted)
            if wanted["oid"] not in self.server.hub.objects:
                href = f"http://{self.headers['Host']}/lfs/{wanted['oid']}"
                answer["actions"] = {"upload": {"href": href}}
            answers.append(answer)
        self._send_json({"transfer": "basic", "objects": answers})

    def _take_object(self, oid: str) -> None:
        fault = self.server.hub.take_fault("lfs")
        if fault.status:
            return self._fail_status(fault)
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.server.hub.objects[oid] = self.body
        return self._send_json({})

    def _commit(self, name: str, repo: Repo, branch: str) -> None:
        """Apply all operations of a commit, or none."""
        fault = self.server.hub.take_fault("commit")
        if fault.status:
            return self._fail_status(fault)
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        if header.get("parentCommit", repo.refs[branch]) != repo.refs[branch]:
            return self._refuse(412, "", "A commit has happened since")
        files = dict(repo.commits[repo.refs[branch]])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = make_blob(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                files[value["path"]] = _large(self.server.hub.objects[value["oid"]])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        key = repr([repo.refs[branch], [(n, blob.sha256) for n, blob in sorted(files.items())]])
        sha = hashlib.sha1(key.encode()).hexdigest()
        repo.commits[sha], repo.refs[branch] = dict(sorted(files.items())), sha
        repo.log.append((branch, header["summary"], [line["value"]["path"] for line in lines[1:]]))
        if fault.drop_after is not None:
            self.close_connection = True  # committed, but nobody is told
            return None
        url = f"http://{self.headers['Host']}/{name}/commit/{sha}"
        return self._send_json({"commitUrl": url, "commitOid": sha})

    def _send_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self._head(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)


def _large(content: bytes) -> Blob:
    return make_blob(content, lfs_bytes=0)
