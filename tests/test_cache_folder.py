from __future__ import annotations

from lit_kvpred.cache_folder import cache_folder


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LIT_KVPRED_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LIT_KVPRED_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "lit_kvpred"
